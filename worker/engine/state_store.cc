#include "worker/engine/state_store.h"

namespace tercio::engine {

StateStore::StateStore(const plan::StageTensors& tensors, const plan::RankShards& shards,
                       Arena& arena)
    : weights_(arena.Floats("parameters")),
      first_moments_(arena.Floats("adamw.m")),
      second_moments_(arena.Floats("adamw.v")) {
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
    range.weights = weights_ + (shards.divides_master ? part.state_offset : range.model_offset);
    range.first_moment = first_moments_ + part.state_offset;
    range.second_moment = second_moments_ + part.state_offset;
    ranges_.push_back(range);
  }
}

}  // namespace tercio::engine
