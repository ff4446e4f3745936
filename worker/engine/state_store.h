// The training state that a rank holds between steps: of each of its tensors the part that is in
// its shard, as fp32 weights and both moments, or, where it is frozen, as weights alone, in the
// format that the model reads, wherever the memory table has put them (the device, the host, a
// file). Updates, snapshots, loading and digests walk its ranges, and know no offsets.
//
// Threads: that of the engine; it does not change once it is made.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/values.h"
#include "plan/model_tensors.h"
#include "plan/state_shards.h"
#include "worker/engine/arena.h"

namespace tercio::engine {

// This rank's part of a tensor, elements [part.begin, part.end) of it. Ranks that read each other's
// master weights (RankShards::divides_master) have them for no more than that; the others have all
// of the tensor, of which `weights` is the part.
struct StateRange {
  size_t tensor = 0;  // index in StageTensors.tensors
  plan::ShardPart part;
  bool frozen = false;
  kernels::Values weights;
  float* first_moment = nullptr;  // null: it is frozen
  float* second_moment = nullptr;
  int64_t model_offset = 0;  // elements, in weights of the stage as they lie undivided
};

class StateStore {
 public:
  // The buffers "parameters", "adamw.m" and "adamw.v" of the arena, which outlives it, those of
  // what is near, and RankShards::frozen_buffer.
  StateStore(const plan::StageTensors& tensors, const plan::RankShards& shards, Arena& arena);

  // One for each tensor that has its parameter on this stage, in the order of the tensors; without
  // elements where the shard has none.
  const std::vector<StateRange>& ranges() const { return ranges_; }
  // Null: the parameter is another entry's.
  const StateRange* Find(size_t tensor) const {
    const int index = by_tensor_[tensor];
    return index < 0 ? nullptr : &ranges_[static_cast<size_t>(index)];
  }

  // Whether tensors lie in two buffers each, by their units (plan/state_shards.h, KeepNear).
  bool IsSplit() const { return is_split_; }

  // Whether any of it lies in a file.
  bool IsOnDisk(const Arena& arena) const {
    // What is near is in memory.
    return arena.IsOnDisk(weights_) || arena.IsOnDisk(first_moments_);
  }

 private:
  float* const weights_;
  float* const first_moments_;
  const bool is_split_;
  std::vector<StateRange> ranges_;
  std::vector<int> by_tensor_;
};

}  // namespace tercio::engine
