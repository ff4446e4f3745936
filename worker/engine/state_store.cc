#include "worker/engine/state_store.h"

#include <string>

#include "plan/memory_map.h"

namespace tercio::engine {
namespace {

// Both buffers of a kind of state.
struct SplitBuffer {
  SplitBuffer(Arena& arena, const std::string& name)
      : far(arena.Floats(name)), near(arena.Floats(name + plan::kNearSuffix)) {}
  float* PlaceOf(const plan::ShardPart& part) const {
    return (part.near ? near : far) + part.split_offset;
  }

  float* far;
  float* near;
};

}  // namespace

StateStore::StateStore(const plan::StageTensors& tensors, const plan::RankShards& shards,
                       Arena& arena)
    : weights_(arena.Floats("parameters")),
      first_moments_(arena.Floats("adamw.m")),
      is_split_(shards.splits_moments) {
  const SplitBuffer weights(arena, "parameters");
  const SplitBuffer first(arena, "adamw.m");
  const SplitBuffer second(arena, "adamw.v");
  const kernels::Values frozen = arena.ValuesOf(shards.frozen_buffer, shards.frozen_precision);
  const auto weights_of = [&](const StateRange& range) -> kernels::Values {
    const int64_t packed = range.part.state_offset;
    if (range.frozen) return frozen + (shards.frozen_apart ? packed : range.model_offset);
    if (shards.splits_master) return weights.PlaceOf(range.part);
    return weights_ + (shards.packs_master ? packed : range.model_offset);
  };
  for (size_t i = 0; i < tensors.tensors.size(); ++i) {
    const plan::StageTensor& entry = tensors.tensors[i];
    // Further uses share the memory of the first one.
    by_tensor_.push_back(entry.own_parameter ? static_cast<int>(ranges_.size()) : -1);
    if (!entry.own_parameter) continue;
    const plan::ShardPart& part = shards.own.part(i);
    StateRange range;
    range.tensor = i;
    range.part = part;
    range.frozen = entry.frozen;
    range.model_offset = entry.parameter_offset + part.begin;
    range.weights = weights_of(range);
    if (!range.frozen) {
      range.first_moment = first.PlaceOf(part);
      range.second_moment = second.PlaceOf(part);
    }
    ranges_.push_back(range);
  }
}

}  // namespace tercio::engine
