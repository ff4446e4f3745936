// The optimizer's step over the tensors of a stage, unit by unit (plan/program.h).
//
// Threads: that of the engine.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "kernels/ops.h"
#include "plan/model_tensors.h"
#include "plan/state_shards.h"
#include "proto/tercio/v1/job.pb.h"
#include "worker/engine/arena.h"
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
// tensors stay as they are.
class WeightUpdate {
 public:
  // `training` and `arena` outlive it.
  WeightUpdate(const v1::TrainingSpec& training, const plan::StageTensors& tensors,
               const plan::RankShards& shards, const StateStore& store,
               const UpdateBuffers& buffers, const Arena& arena);

  // Starts to read a unit's state that is in a scratch file.
  void Fetch(int unit);
  // DATA_LOSS: its state in the scratch file is not what the last update wrote there.
  absl::Status Update(int unit, const UpdateNumbers& numbers, kernels::Ops& ops);

  // The errors of Update for all units, without an update: before they are saved.
  absl::Status Verify() const;
  // The state was written by something else: it is as it should be.
  void Forget();

 private:
  struct Unit {
    std::vector<kernels::AdamWTensor> list;
    PagedUpdate paged;
  };
  Unit& UnitAt(int unit) { return units_[static_cast<size_t>(unit - first_unit_)]; }

  const v1::OptimizerSpec& optimizer_;
  const bool is_paged_;  // whether any state is in a scratch file
  int first_unit_ = 0;
  std::vector<Unit> units_;  // as a program counts them
};

}  // namespace tercio::engine
