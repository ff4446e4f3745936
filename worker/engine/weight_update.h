// The optimizer's step over all tensors of a stage.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "kernels/ops.h"
#include "plan/model_tensors.h"
#include "plan/state_shards.h"
#include "proto/tercio/v1/job.pb.h"
#include "worker/engine/paged_update.h"

namespace tercio::engine {

// Flat buffers of the stage; their layout is that of plan/model_tensors.h, but what a rank has of
// its own shard only is at ShardPart::state_offset: moments and, where they are divided
// (RankShards::divides_master), parameters. Gradients are at ShardPart::sum_offset.
struct StageState {
  float* parameters;
  kernels::Values rounded;  // the weights that the model reads; null if those are the parameters
  const float* gradients;
  float* first_moments;
  float* second_moments;
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
                                const plan::RankShards& shards, const StageState& state,
                                const UpdateNumbers& numbers,
                                std::vector<kernels::AdamWTensor>& list, PagedUpdate* paged,
                                kernels::Ops& ops);

}  // namespace tercio::engine
