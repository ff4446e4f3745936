#include "plan/state_shards.h"

#include <algorithm>
#include <numeric>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/check.h"
#include "kernels/ops.h"
#include "model/architecture.h"
#include "plan/offload.h"
#include "plan/precision.h"
#include "plan/reproducibility.h"

namespace tercio::plan {
namespace {

// Sixteen floats are 64 bytes: a cache line, and the widest vectors.
constexpr int64_t kAlignment = 16;
int64_t RoundUp(int64_t elements) { return (elements + kAlignment - 1) / kAlignment * kAlignment; }

// Uses of one tensor must be cut alike wherever they are, so none shares a unit with other tensors.
bool IsUnitOfItsOwn(const StageTensor& entry) {
  return entry.further_use || entry.tensor.shared || entry.tensor.name == model::kTokenTable;
}

std::string NameOfUnit(const StageTensor& first) {
  if (first.use == model::kTokenTable) return "table";
  if (IsUnitOfItsOwn(first)) return std::string(absl::StripSuffix(first.use, ".weight"));
  if (first.in_layer) return absl::StrCat("layers.", first.layer);
  return first.layer < 0 ? "embedding" : "head";
}

// The nearest place at or below `place` where a shard may begin, in a unit whose first tensor is at
// `origin`.
int64_t CutAt(const StageTensors& tensors, const StateUnit& unit, int64_t origin, int64_t place) {
  const auto first = tensors.tensors.begin() + static_cast<std::ptrdiff_t>(unit.first_tensor);
  const auto last = first + static_cast<std::ptrdiff_t>(unit.tensor_count);
  const auto behind = std::upper_bound(
      first, last, place + origin,
      [](int64_t at, const StageTensor& entry) { return at < entry.gradient_offset; });
  const StageTensor& entry = *(behind - 1);
  const int64_t begin = entry.gradient_offset - origin;
  // Padding behind a tensor belongs to it.
  if (place - begin >= entry.elements) return begin + entry.elements;
  const int64_t grid = std::lcm(LocalColumns(entry), kernels::kSquaresBlock);
  TERCIO_CHECK_GT(grid, 0);
  return begin + (place - begin) / grid * grid;
}

void Divide(const StageTensors& tensors, int shards, StateUnit* unit) {
  const StageTensor& last = tensors.tensors[unit->first_tensor + unit->tensor_count - 1];
  const int64_t elements = last.gradient_offset + last.elements - unit->gradient_offset;
  unit->bounds = {0};
  for (int shard = 1; shard < shards; ++shard) {
    unit->bounds.push_back(CutAt(tensors, *unit, unit->gradient_offset, elements * shard / shards));
  }
  unit->bounds.push_back(elements);
}

}  // namespace

int ShardRanks(const v1::Layout& layout) {
  if (layout.zero_stage() == 0) return 1;
  return layout.shard() > 0 ? layout.shard() : layout.data();
}

int ReplicasOf(const v1::Layout& layout) {
  return layout.zero_stage() == 0 ? 1 : layout.data() / ShardRanks(layout);
}

int SecondaryRanks(const v1::Layout& layout) {
  const int ranks = layout.reshard_after_forward();
  return layout.zero_stage() >= 3 && ranks > kKeepsWeights && ranks < ShardRanks(layout) ? ranks
                                                                                         : 0;
}

int PlacesOfLayers(const v1::Layout& layout) { return PrefetchOf(layout) + 1; }

bool DividesGradients(const v1::Layout& layout) {
  return layout.zero_stage() >= 2 && ShardRanks(layout) > 1;
}

int RoundsOf(const v1::Layout& layout, int lanes) {
  return DividesGradients(layout) ? LanesPerDataRank(lanes, layout.data()) : 1;
}

BatchShape BatchShapeOf(const v1::Layout& layout, int lanes) {
  return {.micro_batch = layout.micro_batch(),
          .micro_batches = layout.micro_batches(),
          .data = layout.data(),
          .rounds = RoundsOf(layout, lanes),
          .groups = DividesGradients(layout) ? ReplicasOf(layout) : 1};
}

int SumLevels(const v1::JobSpec& job, const v1::Layout& layout) {
  return OrderIsFixed(job) ? LevelsOfLanes(RoundsOf(layout, LanesOf(job, layout))) : 1;
}

bool MicroBatchesAreRounds(const v1::Layout& layout, int lanes) {
  return RoundsOf(layout, lanes) == layout.micro_batches();
}

bool GathersWeights(const v1::JobSpec& job, const v1::Layout& layout) {
  if (layout.zero_stage() < 3) return false;
  // Weights that are kept whole are gathered once after each update, as those of stage 2.
  const bool divides = ShardRanks(layout) > 1 && layout.reshard_after_forward() != kKeepsWeights;
  return divides || OffloadsParameters(job);
}

bool DividesMasterWeights(const v1::JobSpec& job, const v1::Layout& layout) {
  return GathersWeights(job, layout) || (ShardRanks(layout) > 1 && RoundsWeights(job));
}

bool OptimizerHasMasterWeights(const v1::JobSpec& job, const v1::Layout& layout) {
  return RoundsWeights(job) && !GathersWeights(job, layout);
}

std::string WeightsBuffer(const v1::JobSpec& job, const v1::Layout& layout) {
  if (GathersWeights(job, layout)) return "parameters.places";
  return RoundsWeights(job) ? "parameters.compute" : "parameters";
}

int64_t LocalColumns(const StageTensor& entry) {
  return entry.tensor.shard == Shard::kColumns ? entry.elements / entry.tensor.rows
                                               : entry.tensor.columns;
}

std::vector<StateUnit> StateUnitsOf(const StageTensors& tensors, int shards) {
  std::vector<StateUnit> units;
  bool closed = true;
  for (size_t i = 0; i < tensors.tensors.size(); ++i) {
    const StageTensor& entry = tensors.tensors[i];
    const bool alone = IsUnitOfItsOwn(entry);
    if (closed || alone || units.back().layer != entry.layer) {
      units.push_back({.name = NameOfUnit(entry),
                       .layer = entry.layer,
                       .first_tensor = i,
                       .parameter_offset = entry.parameter_offset,
                       .gradient_offset = entry.gradient_offset,
                       .own_parameter = entry.own_parameter,
                       .model_offset = entry.parameter_offset});
    }
    ++units.back().tensor_count;
    closed = alone;
  }
  for (StateUnit& unit : units) Divide(tensors, shards, &unit);
  return units;
}

void KeepNear(const StageTensors& tensors, double share, std::vector<StateUnit>* units) {
  if (share <= kLeastShare || share >= kWholeShare) return;
  const auto is_of_layer = [&](const StateUnit& unit) {
    return tensors.tensors[unit.first_tensor].in_layer;
  };
  int64_t all = 0;
  for (const StateUnit& unit : *units) all += unit.own_parameter ? unit.elements() : 0;
  auto room = static_cast<int64_t>((1 - share) * static_cast<double>(all));
  const auto keep = [&](StateUnit& unit) {
    if (!unit.own_parameter || unit.elements() > room) return;
    unit.near = true;
    room -= unit.elements();
  };
  for (auto unit = units->rbegin(); unit != units->rend(); ++unit) {
    if (is_of_layer(*unit)) keep(*unit);
  }
  for (StateUnit& unit : *units) {
    if (!is_of_layer(unit)) keep(unit);
  }
}

int64_t LargestPart(const std::vector<StateUnit>& units) {
  int64_t largest = 0;
  for (const StateUnit& unit : units) {
    for (size_t r = 1; r < unit.bounds.size(); ++r) {
      largest = std::max(largest, unit.bounds[r] - unit.bounds[r - 1]);
    }
  }
  return largest;
}

StateShard ShardOf(const StageTensors& tensors, const std::vector<StateUnit>& units, int shard) {
  StateShard result;
  result.parts.resize(tensors.tensors.size());
  for (const StateUnit& unit : units) {
    const int64_t begin = unit.bounds[static_cast<size_t>(shard)];
    const int64_t end = unit.bounds[static_cast<size_t>(shard) + 1];
    // Elements keep their place among aligned groups, so that one vector load fits all buffers.
    const auto place_behind = [&](int64_t elements) {
      return RoundUp(elements) + begin % kAlignment;
    };
    const int64_t place = place_behind(result.elements);
    const int64_t sum = place_behind(result.sum_elements);
    int64_t& split_elements = unit.near ? result.near_elements : result.far_elements;
    const int64_t split = place_behind(split_elements);
    for (size_t i = unit.first_tensor; i < unit.first_tensor + unit.tensor_count; ++i) {
      const StageTensor& entry = tensors.tensors[i];
      const int64_t at = entry.gradient_offset - unit.gradient_offset;
      ShardPart& part = result.parts[i];
      part.begin = std::clamp<int64_t>(begin - at, 0, entry.elements);
      part.end = std::clamp<int64_t>(end - at, 0, entry.elements);
      const int64_t in_shard = std::max<int64_t>(0, at - begin);
      if (unit.own_parameter) {
        part.state_offset = place + in_shard;
        part.split_offset = split + in_shard;
        part.near = unit.near;
      }
      part.sum_offset = sum + in_shard;
    }
    if (end == begin) continue;
    if (unit.own_parameter) {
      result.elements = place + end - begin;
      split_elements = split + end - begin;
    }
    result.sum_elements = sum + end - begin;
  }
  return result;
}

int64_t ShardElements(const StageTensors& tensors, int shards) {
  const std::vector<StateUnit> units = StateUnitsOf(tensors, shards);
  int64_t most = 0;
  for (int shard = 0; shard < shards; ++shard) {
    most = std::max(most, ShardOf(tensors, units, shard).elements);
  }
  return most;
}

SplitElements SplitElementsOf(const StageTensors& tensors, const std::vector<StateUnit>& units) {
  SplitElements most;
  if (units.empty()) return most;
  const auto shards = static_cast<int>(units.front().bounds.size()) - 1;
  for (int rank = 0; rank < shards; ++rank) {
    const StateShard shard = ShardOf(tensors, units, rank);
    most.near = std::max(most.near, shard.near_elements);
    most.far = std::max(most.far, shard.far_elements);
  }
  return most;
}

int64_t SumElements(const StageTensors& tensors, int shards) {
  const std::vector<StateUnit> units = StateUnitsOf(tensors, shards);
  int64_t most = 0;
  for (int shard = 0; shard < shards; ++shard) {
    most = std::max(most, ShardOf(tensors, units, shard).sum_elements);
  }
  return most;
}

int64_t PlaceWeights(const StageTensors& tensors, int places, std::vector<StateUnit>* units) {
  int64_t resident = 0;
  int64_t largest = 0;  // elements of a layer
  int64_t in_layer = 0;
  int layers = 0;
  int last = -1;                             // number of the last layer
  absl::flat_hash_map<int, int64_t> always;  // by tensor number: weights that are always there
  for (StateUnit& unit : *units) {
    const StageTensor& entry = tensors.tensors[unit.first_tensor];
    if (!entry.in_layer || IsUnitOfItsOwn(entry)) {
      const auto [place, is_first] = always.emplace(entry.tensor.index, resident);
      unit.model_offset = place->second;
      if (is_first) resident = RoundUp(resident + unit.elements());
      continue;
    }
    if (layers == 0 || unit.layer != last) {
      last = unit.layer;
      ++layers;
      in_layer = 0;
    }
    unit.stage_layer = layers - 1;
    unit.model_offset = in_layer;
    in_layer = RoundUp(in_layer + unit.elements());
    largest = std::max(largest, in_layer);
  }
  for (StateUnit& unit : *units) {
    if (unit.stage_layer >= 0) unit.model_offset += resident + unit.stage_layer % places * largest;
  }
  return resident + std::min(layers, places) * largest;
}

int64_t KeepOverNeighbours(int ranks, std::vector<StateUnit>* units) {
  int64_t elements = 0;
  for (StateUnit& unit : *units) {
    if (unit.stage_layer < 0) continue;
    const int64_t part = RoundUp((unit.elements() + ranks - 1) / ranks);
    unit.secondary_bounds.clear();
    for (int rank = 0; rank <= ranks; ++rank) {
      unit.secondary_bounds.push_back(std::min(unit.elements(), rank * part));
    }
    unit.secondary_offset = elements;
    elements += part;
  }
  return elements;
}

ShardRange RankShards::RangeOf(const StateUnit& unit, int rank) const {
  ShardRange range;
  if (!divided()) rank = 0;
  range.begin = unit.bounds[static_cast<size_t>(rank)];
  range.elements = unit.bounds[static_cast<size_t>(rank) + 1] - range.begin;
  if (range.elements == 0) return range;
  // ShardOf places a unit's part as a whole: its first tensor, of which the shard may have nothing,
  // is where the part begins. The part may be no more than padding between two tensors.
  const ShardPart& first = own.part(unit.first_tensor);
  range.state_offset = first.state_offset;
  range.split_offset = first.split_offset;
  // Sums of gradients that are not divided are where gradients are.
  range.sum_offset = divides_gradients ? first.sum_offset : unit.gradient_offset + range.begin;
  return range;
}

RankShards ShardsOfRank(const v1::JobSpec& job, const v1::RankPlan& plan,
                        const StageTensors& tensors) {
  RankShards result;
  result.shards = ShardRanks(plan.layout());
  result.units = StateUnitsOf(tensors, result.shards);
  KeepNear(tensors, OffloadedShare(job, plan.layout()), &result.units);
  result.splits_moments = std::any_of(result.units.begin(), result.units.end(),
                                      [](const StateUnit& unit) { return unit.near; });
  result.splits_master = result.splits_moments && OptimizerHasMasterWeights(job, plan.layout());
  result.replicas = ReplicasOf(plan.layout());
  if (result.shards > 1) result.replica = plan.placement().data_index() / result.shards;
  result.own = ShardOf(tensors, result.units, plan.placement().data_index() % result.shards);
  result.divides_master = DividesMasterWeights(job, plan.layout());
  result.divides_gradients = DividesGradients(plan.layout());
  for (size_t i = 0; i < tensors.tensors.size() && !result.divides_gradients; ++i) {
    ShardPart& part = result.own.parts[i];
    part.sum_offset = tensors.tensors[i].gradient_offset + part.begin;
  }
  result.gathers_weights = GathersWeights(job, plan.layout());
  result.of_model = tensors;
  if (!result.gathers_weights) return result;
  result.places = PlacesOfLayers(plan.layout());
  PlaceWeights(tensors, result.places, &result.units);
  if (const int ranks = SecondaryRanks(plan.layout()); ranks > 0) {
    KeepOverNeighbours(ranks, &result.units);
  }
  for (const StateUnit& unit : result.units) {
    for (size_t i = unit.first_tensor; i < unit.first_tensor + unit.tensor_count; ++i) {
      result.of_model.tensors[i].parameter_offset =
          unit.model_offset + tensors.tensors[i].gradient_offset - unit.gradient_offset;
    }
  }
  return result;
}

}  // namespace tercio::plan
