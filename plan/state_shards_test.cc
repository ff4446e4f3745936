// The division of a stage's state: every element belongs to one shard, shards are nearly equal, and
// all uses of a tensor are cut alike.
#include "plan/state_shards.h"

#include <cstdio>
#include <initializer_list>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/ops.h"

namespace tercio::plan {
namespace {

v1::ModelSpec Model(v1::Architecture architecture, int64_t hidden) {
  v1::ModelSpec model;
  model.set_architecture(architecture);
  model.set_layers(4);
  model.set_hidden(static_cast<int32_t>(hidden));
  model.set_heads(4);
  model.set_ffn_hidden(static_cast<int32_t>(4 * hidden));
  model.set_context(24);
  model.set_bias(true);
  model.set_vocab_size(1009);
  if (architecture != v1::ARCHITECTURE_T5) return model;
  model.set_layers(2);
  model.set_decoder_layers(2);
  model.set_decoder_context(10);
  return model;
}

v1::Layout Layout(int tensor, int pipeline, int data) {
  v1::Layout layout;
  layout.set_tensor(tensor);
  layout.set_pipeline(pipeline);
  layout.set_data(data);
  layout.set_zero_stage(1);
  return layout;
}

void CheckStage(const StageTensors& stage, int shards) {
  const std::vector<StateUnit> units = StateUnitsOf(stage, shards);
  size_t next = 0;
  for (const StateUnit& unit : units) {
    EXPECT_EQ(unit.first_tensor, next);
    next += unit.tensor_count;
    ASSERT_EQ(unit.bounds.size(), static_cast<size_t>(shards) + 1);
    EXPECT_EQ(unit.bounds.front(), 0);
    for (int r = 0; r < shards; ++r) {
      EXPECT_LE(unit.bounds[static_cast<size_t>(r)], unit.bounds[static_cast<size_t>(r) + 1]);
    }
    for (size_t i = unit.first_tensor; i < next; ++i) {
      const StageTensor& entry = stage.tensors[i];
      EXPECT_EQ(entry.layer, unit.layer);
      EXPECT_EQ(entry.own_parameter, unit.own_parameter);
      // One list of bounds is for weights and gradients.
      EXPECT_EQ(entry.parameter_offset - unit.parameter_offset,
                entry.gradient_offset - unit.gradient_offset);
    }
  }
  EXPECT_EQ(next, stage.tensors.size());
  for (size_t i = 0; i < stage.tensors.size(); ++i) {
    const StageTensor& entry = stage.tensors[i];
    int64_t at = 0;
    for (int r = 0; r < shards; ++r) {
      const StateShard shard = ShardOf(stage, units, r);
      const ShardPart& part = shard.part(i);
      if (part.elements() == 0) continue;
      EXPECT_EQ(part.begin, at) << entry.use;
      at = part.end;
      if (part.end == entry.elements) continue;
      EXPECT_EQ(part.end % LocalColumns(entry), 0) << entry.use;
      EXPECT_EQ(part.end % kernels::kSquaresBlock, 0) << entry.use;
    }
    EXPECT_EQ(at, entry.elements) << entry.use;
  }
  int64_t most = 0;
  for (int r = 0; r < shards; ++r) {
    // Parts of one shard do not overlap in its buffer.
    const StateShard shard = ShardOf(stage, units, r);
    int64_t trained_end = 0;
    int64_t frozen_end = 0;
    for (size_t i = 0; i < stage.tensors.size(); ++i) {
      const ShardPart& part = shard.part(i);
      if (!stage.tensors[i].own_parameter || part.elements() == 0) continue;
      int64_t& end = stage.tensors[i].frozen ? frozen_end : trained_end;
      EXPECT_GE(part.state_offset, end);
      end = part.state_offset + part.elements();
    }
    EXPECT_LE(trained_end, shard.elements);
    EXPECT_LE(frozen_end, shard.frozen_elements);
    most = std::max(most, shard.elements);
  }
  EXPECT_EQ(most, ShardElements(UnitKindsOf(stage, shards)));
}

v1::JobSpec JobOf(const v1::ModelSpec& model, const std::vector<std::string>& frozen) {
  v1::JobSpec job;
  *job.mutable_model() = model;
  job.mutable_training()->mutable_frozen()->Assign(frozen.begin(), frozen.end());
  return job;
}
// Whole units, parts of them, parts of what is read as one matrix, all.
const std::vector<std::vector<std::string>>& FrozenPatterns() {
  static const auto* const patterns = new std::vector<std::vector<std::string>>{
      {},
      {"layers.1.*"},
      {"embedding.*", "layers.0.*", "*norm*"},
      {"*.attention.query.*", "*.mlp.*", "embedding.position.*"},
      {"*weight"},
      {"*"}};
  return *patterns;
}

TEST(StateShards, TileEveryTensor) {
  for (const v1::Architecture architecture : {v1::ARCHITECTURE_GPT2, v1::ARCHITECTURE_LLAMA,
                                              v1::ARCHITECTURE_BERT, v1::ARCHITECTURE_T5}) {
    for (const int64_t hidden : {32, 96}) {
      for (const int tensor : {1, 2}) {
        for (const int pipeline : {1, 2, 4}) {
          const v1::Layout layout = Layout(tensor, pipeline, 1);
          for (int stage = 0; stage < pipeline; ++stage) {
            for (const int shards : {1, 2, 3, 8}) {
              for (const std::vector<std::string>& frozen : FrozenPatterns()) {
                const v1::JobSpec job = JobOf(Model(architecture, hidden), frozen);
                CheckStage(TensorsOfStage(job, layout, stage), shards);
              }
            }
          }
        }
      }
    }
  }
}

// A unit's part lies in one piece, where its tensors say; also one of a rank that has nothing of a
// small unit but padding between its tensors.
TEST(StateShards, RangesOfUnitsAreThoseOfTheirTensors) {
  int only_padding = 0;
  for (const int zero_stage : {1, 2}) {
    for (const int64_t hidden : {8, 24, 96}) {
      v1::JobSpec job;
      *job.mutable_model() = Model(v1::ARCHITECTURE_GPT2, hidden);
      v1::RankPlan plan;
      *plan.mutable_layout() = Layout(1, 1, 4);
      plan.mutable_layout()->set_zero_stage(zero_stage);
      const StageTensors tensors = TensorsOfStage(job.model(), plan.layout(), 0);
      for (int rank = 0; rank < 4; ++rank) {
        plan.mutable_placement()->set_data_index(rank);
        const RankShards shards = ShardsOfRank(job, plan, tensors);
        for (const StateUnit& unit : shards.units) {
          const ShardRange range = shards.RangeOf(unit, rank);
          int64_t elements = 0;
          for (size_t i = unit.first_tensor; i < unit.first_tensor + unit.tensor_count; ++i) {
            const ShardPart& part = shards.own.part(i);
            if (part.elements() == 0) continue;
            elements += part.elements();
            const int64_t at = tensors.tensors[i].gradient_offset - unit.gradient_offset +
                               part.begin - range.begin;
            EXPECT_LE(at + part.elements(), range.elements) << unit.name;
            EXPECT_EQ(part.sum_offset, range.sum_offset + at) << unit.name;
            if (!unit.own_parameter) continue;
            EXPECT_EQ(part.state_offset, range.state_offset + at) << unit.name;
            EXPECT_EQ(part.split_offset, range.split_offset + at) << unit.name;
          }
          if (range.elements > 0 && elements == 0) ++only_padding;
          if (zero_stage < 2 || range.elements == 0) continue;
          EXPECT_LE(range.sum_offset + range.elements, shards.own.sum_elements) << unit.name;
        }
      }
    }
  }
  EXPECT_GT(only_padding, 0);
}

TEST(StateShards, OneShardIsTheStageAsItLies) {
  const StageTensors stage = TensorsOfStage(Model(v1::ARCHITECTURE_GPT2, 96), Layout(1, 1, 1), 0);
  const StateShard shard = ShardOf(stage, StateUnitsOf(stage, 1), 0);
  EXPECT_EQ(shard.elements, stage.parameter_elements);
  for (size_t i = 0; i < stage.tensors.size(); ++i) {
    if (!stage.tensors[i].own_parameter) continue;
    EXPECT_EQ(shard.part(i).state_offset, stage.tensors[i].parameter_offset);
    EXPECT_EQ(shard.part(i).elements(), stage.tensors[i].elements);
  }
}

// First and last stage have a use each of the tied table, beside other tensors.
TEST(StateShards, UsesOfOneTensorAreCutAlike) {
  for (const v1::Architecture architecture : {v1::ARCHITECTURE_GPT2, v1::ARCHITECTURE_T5}) {
    std::map<int, std::vector<int64_t>> bounds;
    int again = 0;
    for (int stage = 0; stage < 2; ++stage) {
      const StageTensors tensors = TensorsOfStage(Model(architecture, 96), Layout(1, 2, 4), stage);
      for (const StateUnit& unit : StateUnitsOf(tensors, 4)) {
        const LogicalTensor& tensor = tensors.tensors[unit.first_tensor].tensor;
        if (unit.tensor_count != 1) continue;
        const auto [found, fresh] = bounds.emplace(tensor.index, unit.bounds);
        if (!fresh) ++again;
        EXPECT_EQ(found->second, unit.bounds) << tensor.name;
      }
    }
    EXPECT_GE(again, 1);
  }
}

// No two tensors that are read together share a place, and layers take turns.
TEST(StateShards, PlacesOfWeights) {
  for (const v1::Architecture architecture : {v1::ARCHITECTURE_GPT2, v1::ARCHITECTURE_T5}) {
    for (int stage = 0; stage < 2; ++stage) {
      const StageTensors tensors = TensorsOfStage(Model(architecture, 96), Layout(1, 2, 4), stage);
      std::vector<StateUnit> units = StateUnitsOf(tensors, 4);
      const int64_t elements = PlaceWeights(tensors, 2, &units);
      EXPECT_LE(elements, tensors.parameter_elements + 16 * static_cast<int64_t>(units.size()));
      std::map<int, int64_t> ends;  // of what is always there (-1), and of each layer
      for (const StateUnit& unit : units) {
        EXPECT_LE(unit.model_offset + unit.elements(), elements);
        EXPECT_EQ(unit.model_offset % 16, 0);
        if (!unit.own_parameter) continue;
        const bool is_first = !ends.contains(unit.stage_layer);
        if (!is_first) {
          EXPECT_GE(unit.model_offset, ends[unit.stage_layer]);
        } else if (unit.stage_layer > 0) {
          EXPECT_GE(unit.model_offset, ends[unit.stage_layer - 1]);
        }
        ends[unit.stage_layer] = unit.model_offset + unit.elements();
      }
      EXPECT_EQ(ends.size(), 3u);  // with the two layers of the stage
    }
  }
}

// Layers take as many places in turns as there are.
TEST(StateShards, PlacesOfLayersGatheredAhead) {
  const StageTensors tensors = TensorsOfStage(Model(v1::ARCHITECTURE_GPT2, 96), Layout(1, 1, 4), 0);
  std::vector<StateUnit> units = StateUnitsOf(tensors, 4);
  const int64_t one = PlaceWeights(tensors, 1, &units);
  std::set<int64_t> places;
  for (const StateUnit& unit : units) {
    if (unit.stage_layer >= 0) places.insert(unit.model_offset);
  }
  EXPECT_EQ(places.size(), 1u);
  const int64_t two = PlaceWeights(tensors, 2, &units);
  const int64_t three = PlaceWeights(tensors, 3, &units);
  EXPECT_GT(two, one);
  EXPECT_EQ(three - two, two - one);
}

TEST(StateShards, NeighboursKeepEveryElementOfALayerOnce) {
  const StageTensors tensors = TensorsOfStage(Model(v1::ARCHITECTURE_T5, 96), Layout(1, 1, 8), 0);
  std::vector<StateUnit> units = StateUnitsOf(tensors, 8);
  PlaceWeights(tensors, 2, &units);
  const int64_t elements = KeepOverNeighbours(4, &units);
  int64_t end = 0;
  for (const StateUnit& unit : units) {
    if (unit.stage_layer < 0) {
      EXPECT_TRUE(unit.secondary_bounds.empty());
      continue;
    }
    ASSERT_EQ(unit.secondary_bounds.size(), 5u);
    EXPECT_EQ(unit.secondary_bounds.front(), 0);
    EXPECT_EQ(unit.secondary_bounds.back(), unit.elements());
    EXPECT_GE(unit.secondary_offset, end);
    end = unit.secondary_offset + unit.secondary_bounds[1];
  }
  EXPECT_LE(end, elements);
}

// A shard begins at the last place that the rule allows at or below its part of the unit.
void CheckCuts(const StageTensors& stage, const StateUnit& unit) {
  const auto shards = static_cast<int64_t>(unit.bounds.size()) - 1;
  for (int64_t r = 1; r < shards; ++r) {
    const int64_t place = unit.elements() * r / shards;
    size_t i = unit.first_tensor;
    const auto begin_of = [&](size_t tensor) {
      return stage.tensors[tensor].gradient_offset - unit.gradient_offset;
    };
    while (i + 1 < unit.first_tensor + unit.tensor_count && begin_of(i + 1) <= place) ++i;
    const StageTensor& entry = stage.tensors[i];
    const int64_t grid = std::lcm(LocalColumns(entry), kernels::kSquaresBlock);
    const int64_t in_tensor = place - begin_of(i);
    const int64_t cut = in_tensor >= entry.elements ? entry.elements : in_tensor / grid * grid;
    EXPECT_EQ(unit.bounds[static_cast<size_t>(r)], begin_of(i) + cut) << unit.name;
  }
}

// What all units of all shards say, one after the other.
void CheckKinds(const StageTensors& stage, int shards, double share) {
  std::vector<StateUnit> units = StateUnitsOf(stage, shards);
  KeepNear(stage, share, &units);
  const auto counted = [](const StageTensor& entry) {
    return entry.further_use ? 0 : entry.elements - entry.tensor.rows % 7;
  };
  int64_t elements = 0, frozen = 0, sum_elements = 0, near = 0, far = 0, largest = 0;
  std::vector<int64_t> of_shards;
  for (int r = 0; r < shards; ++r) {
    const StateShard shard = ShardOf(stage, units, r);
    elements = std::max(elements, shard.elements);
    frozen = std::max(frozen, shard.frozen_elements);
    sum_elements = std::max(sum_elements, shard.sum_elements);
    near = std::max(near, shard.near_elements);
    far = std::max(far, shard.far_elements);
    int64_t& count = of_shards.emplace_back();
    for (size_t i = 0; i < stage.tensors.size(); ++i) {
      const int64_t end = std::min(shard.part(i).end, counted(stage.tensors[i]));
      count += std::max<int64_t>(0, end - shard.part(i).begin);
    }
  }
  for (const StateUnit& unit : units) {
    CheckCuts(stage, unit);
    EXPECT_FALSE(unit.frozen && unit.near);
    if (unit.frozen) continue;
    for (size_t r = 1; r < unit.bounds.size(); ++r) {
      largest = std::max(largest, unit.bounds[r] - unit.bounds[r - 1]);
    }
  }
  const std::vector<UnitKind> kinds = UnitKindsOf(stage, shards, share);
  EXPECT_EQ(ShardElements(kinds), elements);
  EXPECT_EQ(FrozenElements(kinds), frozen);
  EXPECT_EQ(SumElements(kinds), sum_elements);
  EXPECT_EQ(SplitElementsOf(kinds).near, near);
  EXPECT_EQ(SplitElementsOf(kinds).far, far);
  EXPECT_EQ(LargestPart(kinds), largest);
  EXPECT_EQ(ElementsOfShards(stage, kinds, counted), of_shards);
}

TEST(UnitKinds, FindWhatAWalkOverAllShardsFinds) {
  constexpr uint64_t kSeed = 20261128;
  std::printf("seed %llu\n", static_cast<unsigned long long>(kSeed));
  std::mt19937_64 random(kSeed);
  const auto one_of = [&](std::initializer_list<int> values) {
    return *(values.begin() + random() % values.size());
  };
  for (int i = 0; i < 400; ++i) {
    v1::ModelSpec model =
        Model(static_cast<v1::Architecture>(
                  one_of({v1::ARCHITECTURE_GPT2, v1::ARCHITECTURE_LLAMA, v1::ARCHITECTURE_BERT,
                          v1::ARCHITECTURE_T5, v1::ARCHITECTURE_GEMMA2})),
              4 * one_of({2, 6, 8, 17, 24, 64}));
    model.set_ffn_hidden(4 * one_of({5, 16, 33, 256}));
    model.set_vocab_size(static_cast<int32_t>(11 + random() % 3000));
    model.set_untied_head(random() % 2 == 0);
    const v1::Layout layout = Layout(one_of({1, 2, 4}), one_of({1, 2, 4}), 1);
    const int stage = static_cast<int>(random() % static_cast<uint64_t>(layout.pipeline()));
    const int shards = one_of({1, 2, 3, 4, 7, 16, 100, 768});
    const double share = one_of({0, 1, 2, 3, 4}) / 4.0;
    SCOPED_TRACE(absl::StrCat(model.ShortDebugString(), " ", layout.ShortDebugString(), " stage ",
                              stage, " shards ", shards, " share ", share));
    const std::vector<std::string>& frozen = FrozenPatterns()[random() % FrozenPatterns().size()];
    CheckKinds(TensorsOfStage(JobOf(model, frozen), layout, stage), shards, share);
    if (HasFailure()) return;
  }
}

// So what is computed once for each kind does not grow with the layers.
TEST(UnitKinds, OfAnyNumberOfLayersAreAsMany) {
  v1::ModelSpec model = Model(v1::ARCHITECTURE_GPT2, 96);
  const auto kinds = [&] {
    return UnitKindsOf(TensorsOfStage(model, Layout(1, 1, 1), 0), 16).size();
  };
  const size_t few = kinds();
  EXPECT_EQ(few, 5u);  // table, positions, layers, final norm, and the tied head
  model.set_layers(64);
  EXPECT_EQ(kinds(), few);
}

TEST(StateShards, GroupsAreReplicasOfEachOther) {
  v1::Layout layout = Layout(1, 1, 8);
  layout.set_zero_stage(2);
  layout.set_shard(4);
  layout.set_micro_batch(1);
  layout.set_micro_batches(2);
  EXPECT_EQ(ShardRanks(layout), 4);
  EXPECT_EQ(ReplicasOf(layout), 2);
  // Sixteen lanes: each rank has two, one in each round of its group, which has the half of them.
  const BatchShape shape = BatchShapeOf(layout, 16);
  EXPECT_EQ(shape.groups, 2);
  EXPECT_EQ(FirstSequenceOf(shape, 1, 0), 1);
  EXPECT_EQ(FirstSequenceOf(shape, 1, 1), 5);
  EXPECT_EQ(FirstSequenceOf(shape, 4, 0), 8);
  EXPECT_EQ(FirstSequenceOf(shape, 6, 1), 14);
  for (int data = 0; data < 8; ++data) {
    for (int index = 0; index < 2; ++index) {
      EXPECT_EQ(DataRankOf(shape, FirstSequenceOf(shape, data, index)), data);
    }
  }
}

// Frozen tensors come first in their layer, and have no room where gradients and moments are; what
// is read as one matrix is not torn apart.
TEST(StateShards, FrozenTensorsHaveWeightsOnly) {
  const v1::ModelSpec model = Model(v1::ARCHITECTURE_GPT2, 96);
  const auto trained_elements = [](const StageTensors& stage) {
    int64_t elements = 0;
    for (const StageTensor& entry : stage.tensors) elements += entry.frozen ? 0 : entry.elements;
    return elements;
  };
  for (const std::vector<std::string>& frozen : FrozenPatterns()) {
    const StageTensors stage = TensorsOfStage(JobOf(model, frozen), Layout(1, 1, 1), 0);
    const StageTensors all = TensorsOfStage(model, Layout(1, 1, 1), 0);
    EXPECT_EQ(stage.tensors.size(), all.tensors.size());
    EXPECT_EQ(stage.parameter_elements, all.parameter_elements);
    EXPECT_GE(stage.gradient_elements, trained_elements(stage));
    EXPECT_LE(stage.gradient_elements, trained_elements(stage) + 16 * 64);
    // What checkpoints have moments of.
    const std::vector<bool> with_gradients = TensorsWithGradients(JobOf(model, frozen));
    ASSERT_EQ(with_gradients.size(), ModelTensors(model).size());
    for (const StageTensor& entry : stage.tensors) {
      EXPECT_NE(with_gradients[static_cast<size_t>(entry.tensor.index)], entry.frozen) << entry.use;
    }
    for (size_t i = 1; i < stage.tensors.size(); ++i) {
      const StageTensor& before = stage.tensors[i - 1];
      const StageTensor& entry = stage.tensors[i];
      EXPECT_GE(entry.layer, before.layer);
      EXPECT_TRUE(!entry.tensor.continues || entry.frozen == before.frozen) << entry.use;
      EXPECT_TRUE(entry.layer != before.layer || before.frozen >= entry.frozen) << entry.use;
    }
  }
}

TEST(StateShards, AreNearlyEqual) {
  v1::ModelSpec model = Model(v1::ARCHITECTURE_GPT2, 768);
  model.set_heads(12);
  model.set_vocab_size(50257);
  const StageTensors stage = TensorsOfStage(model, Layout(1, 1, 4), 0);
  const int64_t quarter = stage.parameter_elements / 4;
  EXPECT_LT(ShardElements(UnitKindsOf(stage, 4)), quarter + quarter / 500);
  EXPECT_EQ(ShardRanks(Layout(1, 1, 4)), 4);
  v1::Layout whole = Layout(1, 1, 4);
  whole.set_zero_stage(0);
  EXPECT_EQ(ShardRanks(whole), 1);
}

}  // namespace
}  // namespace tercio::plan
