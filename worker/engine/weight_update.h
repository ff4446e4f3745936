// The optimizer's step over all tensors of a stage.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "kernels/ops.h"
#include "plan/model_tensors.h"
#include "proto/tercio/v1/job.pb.h"
#include "worker/engine/paged_update.h"
#include "worker/engine/state_store.h"

namespace tercio::engine {

// What an update reads and writes beside the state.
struct UpdateBuffers {
  const float* gradients;   // of each range at ShardPart::sum_offset
  kernels::Values rounded;  // the weights that the model reads, at StateRange::model_offset; null:
                            // it reads those of the state, or others make them
};

struct UpdateNumbers {
  int64_t step;  // number among the steps that were taken, from 1
  double learning_rate;
  double gradient_factor;  // for clipping and to undo the loss scale
};

// Updates a rank's shard of the weights of a pipeline stage, those of tied tensors once; frozen
// tensors stay as they are. `list` is scratch memory, kept from step to step. `paged`: for state in
// a scratch file, whose errors it returns; null: there is none.
absl::Status UpdateStageWeights(const v1::TrainingSpec& training, const plan::StageTensors& tensors,
                                const StateStore& store, const UpdateBuffers& buffers,
                                const UpdateNumbers& numbers,
                                std::vector<kernels::AdamWTensor>& list, PagedUpdate* paged,
                                kernels::Ops& ops);

}  // namespace tercio::engine
