// The part of the training state that a rank holds, as slices of logical tensors: the link between
// flat buffers and checkpoints that know no layout.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "kernels/values.h"
#include "plan/model_tensors.h"
#include "plan/state_shards.h"
#include "proto/tercio/v1/checkpoint_service.pb.h"
#include "proto/tercio/v1/plan.pb.h"
#include "worker/engine/state_parts.h"
#include "worker/engine/state_store.h"

namespace tercio::engine {

struct StateSlice {
  v1::TensorSlice slice;
  int64_t elements = 0;       // of the slice: whole local rows
  kernels::Values values;     // where they lie; null: in `part`
  bool frozen = false;        // weights of a frozen tensor
  StatePart* part = nullptr;  // not owned
  // Elements, in what the model reads, where it is one of weights; else -1.
  int64_t model_offset = -1;

  bool is_weight() const { return model_offset >= 0; }
};

// Whether a tensor that an engine needs may be missing in a checkpoint.
bool IsOptionalState(std::string_view tensor);

using StateParts = std::vector<std::unique_ptr<StatePart>>;

// Slices that this rank contributes to a checkpoint; over all ranks every element comes exactly
// once. Where data ranks divide the state, each saves its shard, else one of them each tensor. The
// arguments outlive the slices.
std::vector<StateSlice> SlicesToSave(const plan::StageTensors& tensors,
                                     const plan::RankShards& shards, const v1::RankPlan& plan,
                                     const StateStore& store, const StateParts& parts);

// Slices that this rank needs to resume: of its shard.
std::vector<StateSlice> SlicesToLoad(const plan::StageTensors& tensors, const v1::RankPlan& plan,
                                     const StateStore& store, const StateParts& parts);

// The index in `all` of each of `some`. REQUIRES: they are there; a rank saves whole slices of
// those that it needs.
std::vector<size_t> FindAmong(const std::vector<StateSlice>& all,
                              const std::vector<StateSlice>& some);

}  // namespace tercio::engine
