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
      second_moments_(arena.Floats("adamw.v")),
      is_split_(shards.splits_moments) {
  const SplitBuffer weights(arena, "parameters");
  const SplitBuffer first(arena, "adamw.m");
  const SplitBuffer second(arena, "adamw.v");
  for (size_t i = 0; i < tensors.tensors.size(); ++i) {
    const plan::StageTensor& entry = tensors.tensors[i];
    // Further uses share the memory of the first one.
    by_tensor_.push_back(entry.own_parameter ? static_cast<int>(ranges_.size()) : -1);
    if (!entry.own_parameter) continue;
    const plan::ShardPart& part = shards.own.part(i);
    StateRange range;
    range.tensor = i;
    range.part = part;
    range.model_offset = entry.parameter_offset + part.begin;
    range.weights = shards.splits_master ? weights.PlaceOf(part)
                                         : weights_ + (shards.divides_master ? part.state_offset
                                                                             : range.model_offset);
    range.first_moment = first.PlaceOf(part);
    range.second_moment = second.PlaceOf(part);
    ranges_.push_back(range);
  }
}

}  // namespace tercio::engine
