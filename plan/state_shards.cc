#include "plan/state_shards.h"

#include <algorithm>
#include <numeric>
#include <utility>

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

// Where shards of a unit may begin, for places that ascend.
class Cuts {
 public:
  Cuts(const StageTensors& tensors, const StateUnit& unit)
      : origin_(unit.gradient_offset),
        entry_(tensors.tensors.data() + unit.first_tensor),
        last_(entry_ + unit.tensor_count - 1) {}

  // The nearest one at or below `place`, which is no less than at the call before.
  int64_t At(int64_t place) {
    while (entry_ != last_ && (entry_ + 1)->gradient_offset <= place + origin_) {
      ++entry_;
      grid_ = 0;
    }
    const int64_t begin = entry_->gradient_offset - origin_;
    // Padding behind a tensor belongs to it.
    if (place - begin >= entry_->elements) return begin + entry_->elements;
    if (grid_ == 0) grid_ = std::lcm(LocalColumns(*entry_), kernels::kSquaresBlock);
    TERCIO_CHECK_GT(grid_, 0);
    return begin + (place - begin) / grid_ * grid_;
  }

 private:
  const int64_t origin_;
  const StageTensor* entry_;
  const StageTensor* const last_;
  int64_t grid_ = 0;  // of the entry; 0: not known yet
};

void Divide(const StageTensors& tensors, int shards, StateUnit* unit) {
  const StageTensor& last = tensors.tensors[unit->first_tensor + unit->tensor_count - 1];
  const int64_t elements = last.gradient_offset + last.elements - unit->gradient_offset;
  Cuts cuts(tensors, *unit);
  unit->bounds = {0};
  unit->bounds.reserve(static_cast<size_t>(shards) + 1);
  for (int shard = 1; shard < shards; ++shard) {
    unit->bounds.push_back(cuts.At(elements * shard / shards));
  }
  unit->bounds.push_back(elements);
}

// Whether both have the same tensors, but for their names and numbers.
bool AreAlike(const StageTensors& tensors, const StateUnit& a, const StateUnit& b) {
  if (a.tensor_count != b.tensor_count || a.own_parameter != b.own_parameter || a.near != b.near ||
      a.frozen != b.frozen) {
    return false;
  }
  for (size_t i = 0; i < a.tensor_count; ++i) {
    const StageTensor& of_a = tensors.tensors[a.first_tensor + i];
    const StageTensor& of_b = tensors.tensors[b.first_tensor + i];
    const bool same =
        of_a.gradient_offset - a.gradient_offset == of_b.gradient_offset - b.gradient_offset &&
        of_a.elements == of_b.elements && of_a.further_use == of_b.further_use &&
        of_a.tensor.rows == of_b.tensor.rows && of_a.tensor.columns == of_b.tensor.columns &&
        of_a.tensor.shard == of_b.tensor.shard && of_a.tensor.is_vector == of_b.tensor.is_vector &&
        of_a.tensor.vocabulary == of_b.tensor.vocabulary;
    if (!same) return false;
  }
  return true;
}

// Elements of the largest buffer that has a shard's parts of the chosen units, placed as ShardOf
// places them: each part but the last one is followed by padding.
template <typename Chosen>
int64_t LargestBuffer(const std::vector<UnitKind>& kinds, const Chosen& chosen) {
  int64_t most = 0;
  for (size_t shard = 0; !kinds.empty() && shard + 1 < kinds.front().unit.bounds.size(); ++shard) {
    int64_t elements = 0;
    size_t last = 0;
    int64_t padding = 0;  // behind the last part
    for (const UnitKind& kind : kinds) {
      const int64_t begin = kind.unit.bounds[shard];
      const int64_t end = kind.unit.bounds[shard + 1];
      if (begin == end || !chosen(kind.unit)) continue;
      const int64_t size = begin % kAlignment + end - begin;
      elements += kind.count * RoundUp(size);
      if (kind.last < last) continue;
      last = kind.last;
      padding = RoundUp(size) - size;
    }
    most = std::max(most, elements - padding);
  }
  return most;
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

bool KeepsFrozenApart(const v1::JobSpec& job, const v1::Layout& layout) {
  return GathersWeights(job, layout) || WeightFormatOf(job) != kernels::BlockFormat::kNone;
}

Precision FrozenPrecision(const v1::JobSpec& job) {
  return WeightFormatOf(job) == kernels::BlockFormat::kNone ? PrecisionOf(job) : Precision{};
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
    if (closed || alone || units.back().layer != entry.layer ||
        units.back().frozen != entry.frozen) {
      units.push_back({.name = NameOfUnit(entry),
                       .frozen = entry.frozen,
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
  const auto has_state = [](const StateUnit& unit) { return unit.own_parameter && !unit.frozen; };
  int64_t all = 0;
  for (const StateUnit& unit : *units) all += has_state(unit) ? unit.elements() : 0;
  auto room = static_cast<int64_t>((1 - share) * static_cast<double>(all));
  const auto keep = [&](StateUnit& unit) {
    if (!has_state(unit) || unit.elements() > room) return;
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

std::vector<UnitKind> UnitKindsOf(const StageTensors& tensors, int shards, double share) {
  // What is near, and what is alike, does not depend on the number of shards.
  std::vector<StateUnit> units = StateUnitsOf(tensors, 1);
  KeepNear(tensors, share, &units);
  std::vector<UnitKind> kinds;
  for (size_t i = 0; i < units.size(); ++i) {
    const auto kind = std::find_if(kinds.begin(), kinds.end(), [&](const UnitKind& each) {
      return AreAlike(tensors, each.unit, units[i]);
    });
    if (kind == kinds.end()) {
      kinds.push_back({.unit = std::move(units[i]), .count = 1, .last = i});
    } else {
      ++kind->count;
      kind->last = i;
    }
  }
  for (UnitKind& kind : kinds) Divide(tensors, shards, &kind.unit);
  return kinds;
}

int64_t LargestPart(const StateUnit& unit) {
  int64_t largest = 0;
  for (size_t r = 1; r < unit.bounds.size(); ++r) {
    largest = std::max(largest, unit.bounds[r] - unit.bounds[r - 1]);
  }
  return largest;
}

int64_t LargestPart(const std::vector<UnitKind>& kinds) {
  int64_t largest = 0;
  for (const UnitKind& kind : kinds) {
    if (!kind.unit.frozen) largest = std::max(largest, LargestPart(kind.unit));
  }
  return largest;
}

namespace {

// Places the shard's part of a unit behind what buffers hold already.
void PlacePart(const StageTensors& tensors, const StateUnit& unit, int64_t begin, int64_t end,
               StateShard* shard) {
  // Elements keep their place among aligned groups, so that one vector load fits all buffers.
  const auto place_behind = [&](int64_t elements) {
    return RoundUp(elements) + begin % kAlignment;
  };
  int64_t& elements = unit.frozen ? shard->frozen_elements : shard->elements;
  const int64_t place = place_behind(elements);
  const int64_t sum = place_behind(shard->sum_elements);
  int64_t& split_elements = unit.near ? shard->near_elements : shard->far_elements;
  const int64_t split = place_behind(split_elements);
  for (size_t i = unit.first_tensor; i < unit.first_tensor + unit.tensor_count; ++i) {
    const StageTensor& entry = tensors.tensors[i];
    const int64_t at = entry.gradient_offset - unit.gradient_offset;
    ShardPart& part = shard->parts[i];
    part.begin = std::clamp<int64_t>(begin - at, 0, entry.elements);
    part.end = std::clamp<int64_t>(end - at, 0, entry.elements);
    const int64_t in_shard = std::max<int64_t>(0, at - begin);
    if (unit.own_parameter) part.state_offset = place + in_shard;
    if (unit.frozen) continue;
    if (unit.own_parameter) {
      part.split_offset = split + in_shard;
      part.near = unit.near;
    }
    part.sum_offset = sum + in_shard;
  }
  if (end == begin) return;
  if (unit.own_parameter) elements = place + end - begin;
  if (unit.frozen) return;
  if (unit.own_parameter) split_elements = split + end - begin;
  shard->sum_elements = sum + end - begin;
}

}  // namespace

StateShard ShardOf(const StageTensors& tensors, const std::vector<StateUnit>& units, int shard) {
  StateShard result;
  result.parts.resize(tensors.tensors.size());
  for (const StateUnit& unit : units) {
    PlacePart(tensors, unit, unit.bounds[static_cast<size_t>(shard)],
              unit.bounds[static_cast<size_t>(shard) + 1], &result);
  }
  return result;
}

int64_t ShardElements(const std::vector<UnitKind>& kinds) {
  return LargestBuffer(kinds,
                       [](const StateUnit& unit) { return unit.own_parameter && !unit.frozen; });
}

int64_t FrozenElements(const std::vector<UnitKind>& kinds) {
  return LargestBuffer(kinds,
                       [](const StateUnit& unit) { return unit.own_parameter && unit.frozen; });
}

SplitElements SplitElementsOf(const std::vector<UnitKind>& kinds) {
  const auto of = [&](bool near) {
    return LargestBuffer(kinds, [&](const StateUnit& unit) {
      return unit.own_parameter && !unit.frozen && unit.near == near;
    });
  };
  return {.near = of(true), .far = of(false)};
}

int64_t SumElements(const std::vector<UnitKind>& kinds) {
  return LargestBuffer(kinds, [](const StateUnit& unit) { return !unit.frozen; });
}

std::vector<int64_t> ElementsOfShards(const StageTensors& tensors,
                                      const std::vector<UnitKind>& kinds,
                                      const std::function<int64_t(const StageTensor&)>& counted) {
  std::vector<int64_t> elements;
  for (const auto& [unit, count, last] : kinds) {
    elements.resize(unit.bounds.size() - 1);
    size_t shard = 0;
    for (size_t i = unit.first_tensor; i < unit.first_tensor + unit.tensor_count; ++i) {
      const StageTensor& entry = tensors.tensors[i];
      const int64_t begin = entry.gradient_offset - unit.gradient_offset;
      const int64_t end = begin + std::min(entry.elements, counted(entry));
      // Tensors ascend, as shards do: that in which one ends may have the beginning of the next.
      while (unit.bounds[shard + 1] <= begin && shard + 1 < elements.size()) ++shard;
      for (size_t at = shard; at < elements.size() && unit.bounds[at] < end; ++at) {
        const int64_t in_shard =
            std::min(end, unit.bounds[at + 1]) - std::max(begin, unit.bounds[at]);
        elements[at] += count * std::max<int64_t>(0, in_shard);
      }
    }
  }
  return elements;
}

int64_t PlaceWeights(const StageTensors& tensors, int places, std::vector<StateUnit>* units) {
  int64_t resident = 0;
  // Elements of each place: those of the largest layer that takes it, as layers of an encoder and
  // of a decoder differ.
  std::vector<int64_t> sizes(static_cast<size_t>(places));
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
    int64_t& size = sizes[static_cast<size_t>(unit.stage_layer % places)];
    size = std::max(size, in_layer);
  }
  std::vector<int64_t> ends = {resident};
  for (const int64_t size : sizes) ends.push_back(ends.back() + size);
  for (StateUnit& unit : *units) {
    if (unit.stage_layer < 0) continue;
    unit.model_offset += ends[static_cast<size_t>(unit.stage_layer % places)];
  }
  return ends.back();
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
  result.packs_master = result.divides_master || OptimizerHasMasterWeights(job, plan.layout());
  // Tables of older versions lack the buffer, which a job without frozen tensors does not need.
  result.frozen_apart = KeepsFrozenApart(job, plan.layout()) &&
                        std::any_of(result.units.begin(), result.units.end(),
                                    [](const StateUnit& unit) { return unit.frozen; });
  result.frozen_buffer = result.frozen_apart ? kFrozenBuffer : WeightsBuffer(job, plan.layout());
  result.frozen_precision = FrozenPrecision(job);
  result.divides_gradients = DividesGradients(plan.layout());
  for (size_t i = 0; i < tensors.tensors.size() && !result.divides_gradients; ++i) {
    if (tensors.tensors[i].frozen) continue;
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
