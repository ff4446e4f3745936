// The pure part of a layout: ranks, lanes, tensors, schedules, memory, plans.
#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "plan/buckets.h"
#include "plan/fp8.h"
#include "plan/lanes.h"
#include "plan/limits.h"
#include "plan/memory_map.h"
#include "plan/model_tensors.h"
#include "plan/names.h"
#include "plan/numerics.h"
#include "plan/plan_builder.h"
#include "plan/rank_layout.h"
#include "plan/schedule.h"
#include "plan/sum_tree.h"
#include "plan/tensor_policy.h"

namespace tercio::plan {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

v1::JobSpec Job() {
  v1::JobSpec job;
  job.mutable_model()->set_layers(12);
  job.mutable_model()->set_hidden(64);
  job.mutable_model()->set_heads(8);
  job.mutable_model()->set_ffn_hidden(256);
  job.mutable_model()->set_context(32);
  job.mutable_model()->set_bias(true);
  job.mutable_model()->set_vocab_size(65);
  job.mutable_training()->set_global_batch(48);
  return job;
}

v1::Layout LayoutOf(int tensor, int pipeline, int data, int micro_batch = 1) {
  v1::Layout layout;
  layout.set_tensor(tensor);
  layout.set_pipeline(pipeline);
  layout.set_data(data);
  layout.set_context_parallel(1);
  layout.set_schedule(v1::PIPELINE_SCHEDULE_1F1B);
  layout.set_micro_batch(micro_batch);
  layout.set_micro_batches(48 / data / micro_batch);
  return layout;
}

std::vector<std::vector<v1::Action>> ListsOf(const ScheduleShape& shape) {
  std::vector<std::vector<v1::Action>> lists;
  for (int stage = 0; stage < shape.stages; ++stage) lists.push_back(StageActions(shape, stage));
  return lists;
}

void ExpectGoodSchedule(const ScheduleShape& shape) {
  SCOPED_TRACE("stages " + std::to_string(shape.stages) + " micro-batches " +
               std::to_string(shape.micro_batches) + " chunks " + std::to_string(shape.chunks));
  const absl::StatusOr<ScheduleReport> report = CheckSchedule(ListsOf(shape), shape);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_NEAR(report->bubble_ratio,
              static_cast<double>(shape.stages - 1) / (shape.micro_batches * shape.chunks), 1e-12);
  for (int stage = 0; stage < shape.stages; ++stage) {
    EXPECT_EQ(report->max_in_flight[static_cast<size_t>(stage)], ActivationSlots(shape, stage));
  }
}

TEST(Schedule, EveryCaseUpToSixStagesAndTwelveMicroBatches) {
  for (const v1::PipelineSchedule kind :
       {v1::PIPELINE_SCHEDULE_GPIPE, v1::PIPELINE_SCHEDULE_1F1B}) {
    for (int stages = 1; stages <= 6; ++stages) {
      for (int m = 1; m <= 12; ++m) ExpectGoodSchedule({kind, stages, m, 1});
    }
  }
}

TEST(Schedule, EveryInterleavedCaseUpToSixStagesAndFourChunks) {
  for (int stages = 2; stages <= 6; ++stages) {
    for (int chunks = 2; chunks <= 4; ++chunks) {
      for (int m = stages; m <= 12; m += stages) {
        ExpectGoodSchedule({v1::PIPELINE_SCHEDULE_INTERLEAVED, stages, m, chunks});
      }
    }
  }
}

TEST(Schedule, SlotsAreTheFormulas) {
  EXPECT_EQ(ActivationSlots({v1::PIPELINE_SCHEDULE_GPIPE, 4, 6, 1}, 1), 6);
  EXPECT_EQ(ActivationSlots({v1::PIPELINE_SCHEDULE_1F1B, 4, 6, 1}, 1), 3);
  EXPECT_EQ(ActivationSlots({v1::PIPELINE_SCHEDULE_1F1B, 4, 2, 1}, 0), 2);
}

// A checker that accepts everything would pass the test above.
TEST(Schedule, TheCheckerFindsFaults) {
  const ScheduleShape shapes[] = {{v1::PIPELINE_SCHEDULE_1F1B, 3, 4, 1},
                                  {v1::PIPELINE_SCHEDULE_INTERLEAVED, 2, 4, 2}};
  for (const ScheduleShape& shape : shapes) {
    const auto good = ListsOf(shape);
    for (size_t stage = 0; stage < good.size(); ++stage) {
      for (size_t i = 0; i + 2 < good[stage].size(); ++i) {
        auto lists = good;
        lists[stage].erase(lists[stage].begin() + static_cast<ptrdiff_t>(i));
        EXPECT_FALSE(CheckSchedule(lists, shape).ok())
            << "stage " << stage << " without action " << i;
      }
    }
    auto one_slot = good;
    for (v1::Action& action : one_slot[0]) action.set_slot(0);
    EXPECT_FALSE(CheckSchedule(one_slot, shape).ok());
  }
}

TEST(RankLayout, IsABijectionAndGroupsAgree) {
  for (int tensor : {1, 2, 3}) {
    for (int pipeline : {1, 2, 4}) {
      for (int data : {1, 2, 5}) {
        const v1::Layout layout = LayoutOf(tensor, pipeline, data);
        for (int rank = 0; rank < WorldSize(layout); ++rank) {
          EXPECT_EQ(RankOfCoordinates(layout, CoordinatesOfRank(layout, rank)), rank);
          std::vector<std::string> with_rank;
          for (const v1::ProcessGroup& group : ProcessGroups(layout)) {
            const std::vector<int> ranks = RanksOf(group);
            const auto found = std::find(ranks.begin(), ranks.end(), rank);
            EXPECT_EQ(IndexInGroup(group, rank),
                      found == ranks.end() ? -1 : static_cast<int>(found - ranks.begin()));
            if (found != ranks.end()) with_rank.push_back(group.SerializeAsString());
          }
          std::vector<std::string> of_rank;
          for (const v1::ProcessGroup& group : GroupsOfRank(layout, rank)) {
            of_rank.push_back(group.SerializeAsString());
          }
          EXPECT_EQ(of_rank, with_rank);
        }
        std::map<v1::GroupKind, std::multiset<int>> members;
        for (const v1::ProcessGroup& group : ProcessGroups(layout)) {
          const std::vector<int> ranks = RanksOf(group);
          members[group.kind()].insert(ranks.begin(), ranks.end());
        }
        EXPECT_EQ(members.size(), 4u);
        for (const auto& [kind, ranks] : members) {
          EXPECT_EQ(static_cast<int>(ranks.size()), WorldSize(layout));
          EXPECT_EQ(std::set<int>(ranks.begin(), ranks.end()).size(), ranks.size());
        }
      }
    }
  }
}

TEST(RankLayout, TheExampleOfTheHeader) {
  const v1::Layout layout = LayoutOf(2, 2, 2);
  EXPECT_EQ(CoordinatesOfRank(layout, 5), (Coordinates{1, 0, 1}));
  std::set<std::vector<int>> of_five;
  for (const v1::ProcessGroup& group : ProcessGroups(layout)) {
    const std::vector<int> ranks = RanksOf(group);
    if (ranks.size() == 2 && (ranks[0] == 5 || ranks[1] == 5)) of_five.insert(ranks);
  }
  EXPECT_THAT(of_five,
              ElementsAre(std::vector<int>{1, 5}, std::vector<int>{4, 5}, std::vector<int>{5, 7}));
}

TEST(RankLayout, WhereTheStateLiesDoesNotDivideIt) {
  const v1::Layout layout = LayoutOf(2, 2, 2);
  v1::Layout other = layout;
  other.set_offload_share(0.5);
  EXPECT_TRUE(DivideAlike(layout, other));
  other.set_zero_stage(1);
  EXPECT_FALSE(DivideAlike(layout, other));
}

TEST(Lanes, EverySequenceIsInOneMicroBatchOfOneDataRank) {
  const BatchShape shape = {.micro_batch = 3, .micro_batches = 2, .data = 4};
  std::vector<int> owners;
  for (int data = 0; data < 4; ++data) {
    for (int index = 0; index < shape.micro_batches; ++index) {
      // In order: the lanes of a data rank are runs of the global batch.
      EXPECT_EQ(FirstSequenceOf(shape, data, index), static_cast<int64_t>(owners.size()));
      owners.insert(owners.end(), static_cast<size_t>(shape.micro_batch), data);
    }
  }
  for (size_t i = 0; i < owners.size(); ++i) {
    EXPECT_EQ(DataRankOf(shape, static_cast<int64_t>(i)), owners[i]) << i;
  }
}

// In each round the data ranks have one lane after the other.
TEST(Lanes, RoundsInterleaveDataRanks) {
  const BatchShape shape = {.micro_batch = 2, .micro_batches = 4, .data = 3, .rounds = 2};
  EXPECT_EQ(FirstSequenceOf(shape, 0, 0), 0);
  EXPECT_EQ(FirstSequenceOf(shape, 0, 1), 2);
  EXPECT_EQ(FirstSequenceOf(shape, 1, 0), 4);
  EXPECT_EQ(FirstSequenceOf(shape, 2, 1), 10);
  EXPECT_EQ(FirstSequenceOf(shape, 0, 2), 12);
  EXPECT_EQ(FirstSequenceOf(shape, 2, 3), 22);
  for (int data = 0; data < 3; ++data) {
    for (int index = 0; index < 4; ++index) {
      EXPECT_EQ(DataRankOf(shape, FirstSequenceOf(shape, data, index) + 1), data);
    }
  }
}

TEST(Lanes, CountersOfAnyLength) {
  EXPECT_EQ(LevelsOfLanes(1), 1);
  EXPECT_EQ(LevelsOfLanes(8), 4);
  EXPECT_EQ(LevelsOfLanes(6), 3);
}

TEST(Lanes, CountsAndMerges) {
  EXPECT_EQ(LaneCount(1), 1);
  EXPECT_EQ(LaneCount(12), 4);
  EXPECT_EQ(LaneCount(480), 8);
  EXPECT_EQ(LanesPerDataRank(8, 2), 4);
  EXPECT_EQ(LanesPerDataRank(4, 3), 1);
}

TEST(Lanes, AreThoseOfTheJob) {
  EXPECT_TRUE(CanHaveLanes(96, 32));
  EXPECT_TRUE(CanHaveLanes(8192, kMostLanes));
  EXPECT_FALSE(CanHaveLanes(8192, 2 * kMostLanes));
  EXPECT_FALSE(CanHaveLanes(24, 16));
  EXPECT_FALSE(CanHaveLanes(24, 3));
  EXPECT_FALSE(CanHaveLanes(24, 0));
  v1::JobSpec job = Job();
  job.mutable_training()->set_global_batch(64);
  job.mutable_parallelism()->set_data(2);
  job.mutable_resources()->set_ranks(2);
  const auto lanes = [&] {
    const absl::StatusOr<v1::Layout> layout = LayoutOfJob(job);
    EXPECT_TRUE(layout.ok()) << layout.status();
    return layout.ok() ? BuildPlan(job, *layout, {{"n", 0}, {"n", 1}}, 1)->lanes() : 0;
  };
  // A job that leaves them open has those of its batch.
  job.mutable_training()->set_lanes(0);
  EXPECT_EQ(lanes(), 8);
  for (const int chosen : {1, 8, 32}) {
    job.mutable_training()->set_lanes(chosen);
    EXPECT_EQ(lanes(), chosen);
  }
  job.mutable_training()->set_lanes(3);
  EXPECT_THAT(std::string(LayoutOfJob(job).status().message()), HasSubstr("training.lanes 3"));
}

TEST(Lanes, LevelsAreMergedAsOneTree) {
  // Two sequences a lane: micro-batches of half a lane up to all of them.
  for (const int micro_batch : {1, 2, 4, 8, 16}) {
    const LaneBuffers buffers = LaneBuffersOf(micro_batch, 16, 8);
    EXPECT_EQ(buffers.lanes_per_pass, std::max(1, micro_batch / 2));
    std::vector<std::string> whole(static_cast<size_t>(buffers.whole));
    std::vector<std::string> shared(static_cast<size_t>(buffers.shared));
    const auto at = [&](LaneLevel level) -> std::string& {
      return level.shared < 0 ? whole.at(static_cast<size_t>(level.whole))
                              : shared.at(static_cast<size_t>(level.shared));
    };
    for (int lane = 0; lane < 8; ++lane) {
      LaneLevel level = LevelOf(buffers, lane);
      at(level) = std::to_string(lane);
      for (int i = 0; i < MergesAfterLane(lane); ++i) {
        const LaneLevel below = LevelBelow(level);
        at(below) = "(" + at(below) + "+" + at(level) + ")";
        level = below;
      }
      // What another tensor would overwrite must have been merged by the end of a pass.
      if ((lane + 1) % buffers.lanes_per_pass == 0) {
        EXPECT_EQ(level.shared, -1) << lane;
      }
    }
    EXPECT_EQ(whole[0], "(((0+1)+(2+3))+((4+5)+(6+7)))") << micro_batch;
  }
}

TEST(SumTree, AddsEveryPartOnceInItsOrder) {
  const auto text = [](SumOrder order, int count) {
    std::vector<std::string> parts;
    for (int i = 0; i < count; ++i) parts.push_back(std::to_string(i));
    for (const Addition& addition : SumTreeOf(order, count)) {
      std::string& into = parts[static_cast<size_t>(addition.into)];
      into = "(" + into + "+" + parts[static_cast<size_t>(addition.from)] + ")";
    }
    return parts.front();
  };
  EXPECT_EQ(text(SumOrder::kRanks, 1), "0");
  EXPECT_EQ(text(SumOrder::kRanks, 4), "(((0+1)+2)+3)");
  EXPECT_EQ(text(SumOrder::kTree, 1), "0");
  EXPECT_EQ(text(SumOrder::kTree, 4), "((0+1)+(2+3))");
  EXPECT_EQ(text(SumOrder::kTree, 5), "(((0+1)+2)+(3+4))");
  EXPECT_EQ(text(SumOrder::kTree, 8), "(((0+1)+(2+3))+((4+5)+(6+7)))");
}

TEST(Lanes, BuffersThatLiveOnlyInAMicroBatchAreShared) {
  const auto counts = [](const LaneBuffers& buffers) {
    return std::pair(buffers.whole, buffers.shared);
  };
  EXPECT_EQ(counts(LaneBuffersOf(1, 8, 8)), std::pair(4, 0));
  EXPECT_EQ(counts(LaneBuffersOf(2, 8, 8)), std::pair(3, 1));
  EXPECT_EQ(counts(LaneBuffersOf(8, 8, 8)), std::pair(1, 3));
  EXPECT_EQ(counts(LaneBuffersOf(12, 12, 4)), std::pair(1, 2));
  EXPECT_EQ(counts(LaneBuffersOf(6, 12, 4)), std::pair(2, 1));
  // A lane of three sequences that two micro-batches share.
  EXPECT_EQ(counts(LaneBuffersOf(2, 12, 4)), std::pair(3, 0));
  EXPECT_EQ(counts(LaneBuffersOf(4, 4, 1)), std::pair(1, 0));
}

TEST(Lanes, SegmentsCoverEverySequenceOnce) {
  for (const int micro_batch : {1, 2, 3, 4, 6, 12}) {
    std::vector<int> sequences(4);
    int starts = 0;
    int ends = 0;
    for (int index = 0; index < 12 / micro_batch; ++index) {
      for (const LaneSegment& segment : SegmentsOfMicroBatch(index, micro_batch, 12, 4)) {
        sequences[static_cast<size_t>(segment.lane)] += segment.sequences;
        starts += segment.starts_lane;
        ends += segment.completes_lane;
      }
    }
    EXPECT_THAT(sequences, ElementsAre(3, 3, 3, 3)) << micro_batch;
    EXPECT_EQ(starts, 4);
    EXPECT_EQ(ends, 4);
  }
}

TEST(ModelTensors, ShardsTileEveryTensor) {
  const v1::JobSpec job = Job();
  for (const int tensor : {1, 2, 4, 8}) {
    for (const LogicalTensor& logical : ModelTensors(job.model())) {
      std::vector<int> covered(static_cast<size_t>(logical.rows * logical.columns));
      const int ranks = logical.shard == Shard::kWhole ? 1 : tensor;
      for (int rank = 0; rank < ranks; ++rank) {
        const TensorShard shard = ShardOfRank(logical, tensor, rank, PaddedVocabulary(65, tensor));
        for (int64_t row = shard.row_begin; row < shard.row_end; ++row) {
          for (int64_t column = shard.column_begin; column < shard.column_end; ++column) {
            ++covered[static_cast<size_t>(row * logical.columns + column)];
          }
        }
      }
      EXPECT_THAT(covered, ::testing::Each(1)) << logical.name << " over " << tensor;
    }
  }
}

TEST(ModelTensors, StagesHoldEveryTensorAndKeepQkvTogether) {
  const v1::JobSpec job = Job();
  for (const int pipeline : {1, 2, 3, 4}) {
    std::multiset<std::string> names;
    for (int stage = 0; stage < pipeline; ++stage) {
      const StageTensors tensors = TensorsOfStage(job.model(), LayoutOf(2, pipeline, 1), stage);
      int64_t end = 0;
      for (const StageTensor& entry : tensors.tensors) {
        if (!entry.further_use) names.insert(entry.tensor.name);
        EXPECT_GE(entry.gradient_offset, end);
        const bool follows = entry.tensor.name.find(".key.") != std::string::npos ||
                             entry.tensor.name.find(".value.") != std::string::npos;
        EXPECT_TRUE(follows ? entry.gradient_offset == end : entry.gradient_offset % 16 == 0);
        end = entry.gradient_offset + entry.elements;
      }
      EXPECT_LE(end, tensors.gradient_elements);
    }
    EXPECT_EQ(names.size(), ModelTensors(job.model()).size());
    EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), names.size());
  }
}

TEST(TensorPolicy, Patterns) {
  EXPECT_TRUE(MatchesPattern("layers.0.mlp.up.bias", "*.bias"));
  EXPECT_TRUE(MatchesPattern("layers.0.mlp.up.bias", "layers.*.mlp.*"));
  EXPECT_TRUE(MatchesPattern("abcabd", "*abd"));
  EXPECT_TRUE(MatchesPattern("abc", "***"));
  EXPECT_FALSE(MatchesPattern("abc", "ab"));
  EXPECT_FALSE(MatchesPattern("abc", "*b"));
  EXPECT_FALSE(MatchesPattern("", "a*"));
  v1::TrainingSpec training;
  training.mutable_optimizer()->add_no_decay("embedding.*");
  training.add_frozen("layers.1.*");
  for (const LogicalTensor& tensor : ModelTensors(Job().model())) {
    const TensorPolicy policy = PolicyOf(tensor, training);
    EXPECT_EQ(policy.weight_decay, !tensor.is_vector && tensor.name.rfind("embedding", 0) != 0);
    EXPECT_EQ(policy.frozen, tensor.name.rfind("layers.1.", 0) == 0) << tensor.name;
  }
  EXPECT_TRUE(MatchesAnyTensor(Job().model(), "layers.11.*"));
  EXPECT_FALSE(MatchesAnyTensor(Job().model(), "layers.12.*"));
}

TEST(MemoryMap, RecomputationKeepsLess) {
  v1::Layout layout = LayoutOf(2, 2, 1, 4);
  std::vector<int64_t> bytes;
  for (const v1::Recompute recompute :
       {v1::RECOMPUTE_FULL, v1::RECOMPUTE_SELECTIVE, v1::RECOMPUTE_NONE}) {
    layout.set_recompute(recompute);
    bytes.push_back(MemoryOfStage(Job(), layout, 0, 1).total_bytes());
  }
  EXPECT_LT(bytes[0], bytes[1]);
  EXPECT_LT(bytes[1], bytes[2]);
}

TEST(MemoryMap, HalfPrecisionAddsTheModelsCopyOfTheWeights) {
  const v1::Layout layout = LayoutOf(2, 2, 1, 4);
  const v1::MemoryTable full = MemoryOfStage(Job(), layout, 0, 1);
  for (const v1::Precision precision : {v1::PRECISION_BF16, v1::PRECISION_FP16}) {
    v1::JobSpec job = Job();
    job.mutable_training()->set_precision(precision);
    const v1::MemoryTable table = MemoryOfStage(job, layout, 0, 1);
    const v1::Buffer& copy = FindBuffer(table, "parameters.compute");
    EXPECT_EQ(copy.kind(), v1::BUFFER_KIND_PARAMETER);
    EXPECT_EQ(copy.size_bytes(), FindBuffer(table, "parameters").size_bytes());
    EXPECT_EQ(table.buffers_size(), full.buffers_size() + 1);
    // The state of the loss scale is saved, too.
    const int64_t more = precision == v1::PRECISION_FP16 ? 5 * 4 : 0;
    EXPECT_EQ(FindBuffer(table, "snapshot").size_bytes(),
              FindBuffer(full, "snapshot").size_bytes() + more);
  }
}

TEST(MemoryMap, ASaveInPlaceNeedsNoCopyOfTheState) {
  v1::JobSpec job = Job();
  const v1::Layout layout = LayoutOf(2, 2, 1, 4);
  const v1::MemoryTable copy = MemoryOfStage(job, layout, 0, 1);
  job.mutable_checkpoint()->set_snapshot(v1::SNAPSHOT_KIND_IN_PLACE);
  const v1::MemoryTable in_place = MemoryOfStage(job, layout, 0, 1);
  EXPECT_GT(FindBuffer(copy, "snapshot").size_bytes(), 0);
  EXPECT_EQ(FindBuffer(in_place, "snapshot").size_bytes(), 0);
  // The step guard's numbers are in no buffer.
  job.mutable_fault_tolerance()->set_on_nan(v1::ON_NAN_SKIP);
  EXPECT_EQ(FindBuffer(MemoryOfStage(job, layout, 0, 1), "snapshot").size_bytes(),
            StateElements(job) * 4);
  // A GPU's state lies where no save can read it.
  job.mutable_resources()->set_device(v1::DEVICE_KIND_CUDA);
  EXPECT_GT(FindBuffer(MemoryOfStage(job, layout, 0, 1), "snapshot").size_bytes(), 1000);
}

TEST(MemoryMap, LanesOfAMicroBatchShareTheirBuffers) {
  v1::JobSpec job = Job();
  job.mutable_training()->set_global_batch(8);
  const auto gradients = [&](int64_t micro_batch) {
    job.mutable_training()->set_micro_batch(micro_batch);
    const v1::Layout layout = *LayoutOfJob(job);
    std::vector<int64_t> sizes;
    const v1::MemoryTable table = MemoryOfStage(job, layout, 0, 1);
    for (const v1::Buffer& buffer : table.buffers()) {
      if (buffer.kind() == v1::BUFFER_KIND_GRADIENT) sizes.push_back(buffer.size_bytes() / 4);
    }
    return sizes;
  };
  const v1::Layout layout = *LayoutOfJob(job);
  const int64_t all = TensorsOfStage(job.model(), layout, 0).gradient_elements;
  const int64_t bucket = LargestBucket(TensorsOfStage(job.model(), layout, 0));
  EXPECT_LT(bucket, all);
  EXPECT_THAT(gradients(1), ElementsAre(all, all, all, all));
  EXPECT_THAT(gradients(4), ElementsAre(all, all, bucket, bucket));
  EXPECT_THAT(gradients(8), ElementsAre(all, bucket, bucket, bucket));
}

TEST(MemoryMap, Fp8AddsWeightsFactorsAndScales) {
  v1::JobSpec job = Job();
  job.mutable_resources()->set_device(v1::DEVICE_KIND_CUDA);
  job.mutable_training()->set_precision(v1::PRECISION_BF16);
  const v1::Layout layout = LayoutOf(2, 2, 2, 4);
  const v1::MemoryTable without = MemoryOfStage(job, layout, 1, 1);
  job.mutable_training()->set_fp8(true);
  const v1::MemoryTable with = MemoryOfStage(job, layout, 1, 1);
  const StageShape shape = ShapeOfStage(job, layout, 1);
  const int64_t layers = job.model().layers() / 2;
  const StageUnits units = UnitsOfStage(job.model(), layout, 1);
  const Fp8Weights weights = Fp8WeightsOf(shape, units);
  ASSERT_EQ(weights.products.size(), layers * kFp8ProductsOfLayer);
  int64_t end = 0;
  for (size_t i = 0; i < weights.products.size(); ++i) {
    const model::Product& product =
        units.layer(i / kFp8ProductsOfLayer).products[i % kFp8ProductsOfLayer];
    ASSERT_TRUE(TakesFp8(shape, product));
    const Fp8Weight& at = weights.products[i];
    EXPECT_EQ(at.plain, end);
    EXPECT_GE(at.transposed - at.plain, product.outputs * product.inputs);
    end = 2 * at.transposed - at.plain;
  }
  EXPECT_EQ(weights.bytes, end);
  EXPECT_EQ(FindBuffer(with, "parameters.fp8").size_bytes(), end);
  EXPECT_EQ(FindBuffer(with, "fp8.input").size_bytes(), shape.most().rows * MostFp8Inputs(units));
  EXPECT_EQ(FindBuffer(with, "fp8.all_largest").size_bytes(), layers * kFp8SlotsOfLayer * 4 * 4);
  EXPECT_EQ(FindBuffer(with, "snapshot").size_bytes(),
            FindBuffer(without, "snapshot").size_bytes() + layers * kFp8StateOfLayer * 4);
  EXPECT_FALSE(TakesFp8(shape, 24, 32, 32));
  EXPECT_FALSE(TakesFp8(shape, 0, 32, 32));
  EXPECT_FALSE(TakesFp8(ShapeOfStage(Job(), layout, 1), 32, 32, 32));
  EXPECT_TRUE(CheckFp8(job).ok());
  job.mutable_training()->set_precision(v1::PRECISION_FP16);
  EXPECT_EQ(CheckFp8(job).code(), absl::StatusCode::kInvalidArgument);
  job.mutable_training()->set_precision(v1::PRECISION_BF16);
  job.mutable_resources()->set_device(v1::DEVICE_KIND_CPU);
  EXPECT_EQ(CheckFp8(job).code(), absl::StatusCode::kInvalidArgument);
}

// Weights and biases take turns in a layer: by turns one of two ranks would save nearly everything.
TEST(MemoryMap, DataRanksSaveAboutAsMuch) {
  for (const int data : {1, 2, 3, 4}) {
    for (const int pipeline : {1, 2}) {
      const StageTensors stage = TensorsOfStage(Job().model(), LayoutOf(2, pipeline, data), 0);
      const std::vector<int> savers = SavingDataRanks(stage, data);
      ASSERT_EQ(savers.size(), stage.tensors.size());
      std::vector<int64_t> load(static_cast<size_t>(data));
      int64_t all = 0;
      for (size_t i = 0; i < savers.size(); ++i) {
        const bool head = stage.tensors[i].further_use;
        ASSERT_EQ(savers[i] < 0, head);
        if (head) continue;
        ASSERT_LT(savers[i], data);
        load[static_cast<size_t>(savers[i])] += stage.tensors[i].elements;
        all += stage.tensors[i].elements;
      }
      for (const int64_t of_rank : load) EXPECT_NEAR(of_rank, all / data, all / 50) << data;
    }
  }
}

TEST(MemoryMap, CopiesOfSnapshotsTakeAllThatARankNeeds) {
  v1::JobSpec keeps = Job();
  keeps.mutable_checkpoint()->set_peer_copies(2);
  for (const int data : {1, 2}) {
    for (const int pipeline : {1, 2}) {
      const v1::Layout layout = LayoutOf(1, pipeline, data);
      for (int stage = 0; stage < pipeline; ++stage) {
        const v1::MemoryTable without = MemoryOfStage(Job(), layout, stage, 1);
        const v1::MemoryTable with = MemoryOfStage(keeps, layout, stage, 1);
        const int64_t needed = FindBuffer(with, "parameters").size_bytes() +
                               FindBuffer(with, "adamw.m").size_bytes() +
                               FindBuffer(with, "adamw.v").size_bytes();
        const v1::Buffer& snapshot = FindBuffer(with, "snapshot");
        EXPECT_LE(snapshot.size_bytes(), needed);
        EXPECT_GT(snapshot.size_bytes(), needed - needed / 10);
        // Nothing else changes.
        EXPECT_EQ(snapshot.offset_bytes(), FindBuffer(without, "snapshot").offset_bytes());
        EXPECT_EQ(with.buffers_size(), without.buffers_size());
      }
    }
  }
}

TEST(MemoryMap, BuffersDoNotOverlap) {
  for (const v1::Layout& layout : {LayoutOf(1, 1, 1, 4), LayoutOf(2, 2, 2), LayoutOf(4, 3, 1, 2)}) {
    for (int stage = 0; stage < layout.pipeline(); ++stage) {
      const v1::MemoryTable table = MemoryOfStage(Job(), layout, stage, 2);
      int64_t end = 0;
      for (const v1::Buffer& buffer : table.buffers()) {
        EXPECT_EQ(buffer.offset_bytes() % 64, 0) << buffer.name();
        EXPECT_GE(buffer.offset_bytes(), end) << buffer.name();
        end = buffer.offset_bytes() + buffer.size_bytes();
      }
      EXPECT_LE(end, table.total_bytes());
    }
  }
}

TEST(PlanBuilder, BucketsTileTheGradients) {
  const v1::JobSpec job = Job();
  std::vector<DeviceSlot> slots(8, {"n", 0});
  const auto plan = BuildPlan(job, LayoutOf(2, 2, 2), slots, 1);
  ASSERT_TRUE(plan.ok()) << plan.status();
  for (int stage = 0; stage < 2; ++stage) {
    int64_t begin = TensorsOfStage(job.model(), plan->layout(), stage).gradient_elements;
    for (const v1::BucketRange& bucket : plan->stages(stage).buckets()) {
      EXPECT_EQ(bucket.end(), begin);
      begin = bucket.begin();
    }
    EXPECT_EQ(begin, 0);
  }
  EXPECT_EQ(SliceForRank(*plan, 5).placement().pipeline_index(), 1);
  EXPECT_EQ(SliceForRank(*plan, 5).groups_size(), 4);
}

// The head's gradient of a tied embedding is reduced with the lookup's where the order may change.
TEST(PlanBuilder, BucketsOfGpusLeaveOutTheTiedHead) {
  v1::JobSpec job = Job();
  const auto reduced = [&](int pipeline, int data) {
    int64_t elements = 0;
    for (int stage = 0; stage < pipeline; ++stage) {
      for (const auto& bucket : BucketsOfStage(job, LayoutOf(1, pipeline, data), stage)) {
        EXPECT_LT(bucket.begin(), bucket.end());
        elements += bucket.end() - bucket.begin();
      }
    }
    return elements;
  };
  const auto all = [&](int pipeline) {
    int64_t elements = 0;
    for (int stage = 0; stage < pipeline; ++stage) {
      elements += TensorsOfStage(job.model(), LayoutOf(1, pipeline, 2), stage).gradient_elements;
    }
    return elements;
  };
  EXPECT_EQ(reduced(1, 2), all(1));
  job.mutable_resources()->set_device(v1::DEVICE_KIND_CUDA);
  const int64_t table = PaddedVocabulary(job.model().vocab_size(), 1) * job.model().hidden();
  EXPECT_EQ(reduced(1, 2), all(1) - table);
  EXPECT_EQ(reduced(1, 1), all(1));
  EXPECT_EQ(reduced(2, 2), all(2));
  job.mutable_training()->set_reproducibility(v1::REPRODUCIBILITY_EXACT);
  EXPECT_EQ(reduced(1, 2), all(1));
  job.mutable_training()->set_reproducibility(v1::REPRODUCIBILITY_LAYOUT);
  job.mutable_model()->set_untied_head(true);
  EXPECT_EQ(reduced(1, 2), all(1));
}

// By the function that decides for each call (kernels/cuda/attention_cudnn.h).
TEST(MemoryMap, AttentionThatCudnnDoesNotComputeIsNamed) {
  v1::JobSpec job = Job();
  job.mutable_resources()->set_device(v1::DEVICE_KIND_CUDA);
  job.mutable_training()->set_precision(v1::PRECISION_BF16);
  job.mutable_model()->set_hidden(64 * job.model().heads());
  const auto why = [](const v1::JobSpec& spec, int capability = 9) {
    return WhyOwnAttention(spec, LayoutOf(1, 1, 1), capability);
  };
  EXPECT_EQ(why(job), "");
  EXPECT_EQ(why(job, 8), "");
  EXPECT_EQ(why(job, 0), "");
  EXPECT_EQ(why(job, 10), "");
  EXPECT_THAT(why(job, 11), AllOf(HasSubstr("gradients of attention are computed by our own"),
                                  HasSubstr("is not guaranteed to repeat bits on this GPU")));
  v1::JobSpec other = job;
  other.mutable_model()->set_dropout(0.1);
  EXPECT_EQ(why(other), "");
  EXPECT_THAT(why(other, 10), HasSubstr("has no dropout on this GPU where it repeats bits"));
  other = job;
  other.mutable_model()->set_hidden(256 * job.model().heads());
  EXPECT_EQ(why(other), "");
  EXPECT_THAT(why(other, 12), HasSubstr("heads of up to 128 only"));
  other = job;
  other.mutable_model()->set_hidden(12 * job.model().heads());
  EXPECT_THAT(why(other), HasSubstr("heads of a multiple of 8"));
  other = job;
  other.mutable_model()->set_architecture(v1::ARCHITECTURE_BERT);
  EXPECT_EQ(why(other), "");
  other = job;
  other.mutable_data()->mutable_chat()->set_template_("chatml");
  EXPECT_EQ(why(other), "");
  other.mutable_data()->mutable_chat()->set_packing(true);
  EXPECT_THAT(why(other), AllOf(HasSubstr("attention is computed by our own kernels"),
                                HasSubstr("does not keep documents apart (data.packing)")));
  other = job;
  other.mutable_training()->set_precision(v1::PRECISION_FP32);
  EXPECT_THAT(why(other), HasSubstr("16-bit values"));
  other = job;
  other.mutable_model()->set_context(1 << 17);
  EXPECT_THAT(why(other), HasSubstr("gradients of attention are computed by our own"));
}

TEST(PlanBuilder, CollectivesGoOverNcclWhereEveryRankHasAGpuOfItsOwn) {
  v1::JobSpec job = Job();
  const auto collectives = [&](std::vector<DeviceSlot> slots) {
    const auto plan = BuildPlan(job, LayoutOf(1, 1, 4), slots, 1);
    if (!plan.ok()) return std::string(plan.status().message());
    EXPECT_EQ(SliceWithoutStage(*plan, 2).collectives(), plan->collectives());
    return TextOf(plan->collectives());
  };
  const std::vector<DeviceSlot> alone = {{"a", 0, 0}, {"a", 1, 1}, {"b", 0, 0}, {"b", 1, 1}};
  const std::vector<DeviceSlot> shared = {{"a", 0, 0}, {"a", 1, 1}, {"a", 2, 0}, {"a", 3, 1}};
  EXPECT_EQ(collectives(alone), "");  // CPUs
  job.mutable_resources()->set_device(v1::DEVICE_KIND_CUDA);
  EXPECT_EQ(collectives(alone), "nccl");
  EXPECT_EQ(collectives(shared), "host");
  job.mutable_training()->set_reproducibility(v1::REPRODUCIBILITY_EXACT);
  EXPECT_EQ(collectives(alone), "host");
  job.mutable_training()->clear_reproducibility();
  job.mutable_resources()->set_collectives(v1::COLLECTIVES_HOST);
  EXPECT_EQ(collectives(alone), "host");
  job.mutable_resources()->set_collectives(v1::COLLECTIVES_NCCL);
  EXPECT_EQ(collectives(alone), "nccl");
  EXPECT_THAT(collectives(shared), HasSubstr("ranks 0 and 2 share GPU 0 of node a"));
}

TEST(Numerics, OtherOnesAreDescribed) {
  EXPECT_EQ(DescribeOtherNumerics(2, 2), "");
  EXPECT_EQ(DescribeOtherNumerics(0, 2), "");
  EXPECT_THAT(DescribeOtherNumerics(1, 2), AllOf(HasSubstr("computed by numerics 1"),
                                                 HasSubstr("this version computes by numerics 2")));
  EXPECT_EQ(RecordedNumerics(0), 1);
  EXPECT_EQ(RecordedNumerics(3), 3);
}

TEST(PlanBuilder, ImpossibleLayoutsSayWhyAndWhatWorks) {
  v1::JobSpec job = Job();
  const auto fault = [&](int tensor, int pipeline, int data, int ranks) {
    job.mutable_parallelism()->set_tensor(tensor);
    job.mutable_parallelism()->set_pipeline(pipeline);
    job.mutable_parallelism()->set_data(data);
    job.mutable_resources()->set_ranks(ranks);
    return std::string(LayoutOfJob(job).status().message());
  };
  EXPECT_THAT(fault(3, 1, 2, 6), HasSubstr("tensor 3 does not divide model.heads 8"));
  EXPECT_THAT(fault(1, 24, 1, 24), HasSubstr("pipeline 24 does not divide model.layers 12"));
  EXPECT_THAT(fault(1, 1, 5, 5), HasSubstr("global_batch 48"));
  EXPECT_THAT(fault(2, 1, 2, 6), HasSubstr("= 4 ranks, but resources.ranks is 6"));
  EXPECT_THAT(fault(3, 1, 2, 6), HasSubstr("nearest tensor x pipeline x data that work: "));
}

TEST(PlanBuilder, RanksOfAJob) {
  const auto ranks = [](bool automatic, int tensor, int pipeline, int data, int given) {
    v1::JobSpec job;
    job.mutable_parallelism()->set_automatic(automatic);
    job.mutable_parallelism()->set_tensor(tensor);
    job.mutable_parallelism()->set_pipeline(pipeline);
    job.mutable_parallelism()->set_data(data);
    job.mutable_resources()->set_ranks(given);
    return RanksOfJob(job);
  };
  EXPECT_EQ(ranks(false, 2, 3, 4, 0), 24);
  EXPECT_EQ(ranks(false, 2, 3, 0, 12), 12);  // the data degree is what is left
  EXPECT_EQ(ranks(false, 2, 3, 0, 0), 6);
  EXPECT_EQ(ranks(false, 0, 0, 0, 0), 1);
  EXPECT_EQ(ranks(true, 2, 3, 4, 8), 8);  // the planner chooses
  EXPECT_EQ(ranks(true, 2, 3, 4, 0), 1);
}

// Degrees come from whoever submits a job: their product must not leave its integer, where it may
// be 0.
TEST(PlanBuilder, DegreesWithoutBounds) {
  v1::JobSpec job = Job();
  v1::ParallelismSpec& wanted = *job.mutable_parallelism();
  for (const int degree : {1 << 11, 1 << 16, std::numeric_limits<int>::max()}) {
    for (const int data : {0, degree}) {
      wanted.set_tensor(degree);
      wanted.set_pipeline(degree);
      wanted.set_data(data);
      EXPECT_GT(RanksOfJob(job), kMostRanks);
      EXPECT_THAT(std::string(LayoutOfJob(job).status().message()),
                  HasSubstr("a job has at most 1048576 ranks"));
    }
  }
  wanted.set_tensor(1);
  wanted.set_pipeline(1 << 16);
  wanted.set_data(1);
  wanted.set_virtual_pipeline(1 << 16);
  EXPECT_THAT(std::string(LayoutOfJob(job).status().message()),
              HasSubstr("x virtual_pipeline 65536 does not divide model.layers 12"));
}

TEST(Limits, SizesThatLeaveTheirIntegers) {
  EXPECT_TRUE(CheckSizes(Job()).ok());
  const auto fault = [](const auto& change) {
    v1::JobSpec job = Job();
    change(job);
    return std::string(CheckSizes(job).message());
  };
  EXPECT_THAT(fault([](auto& job) { job.mutable_model()->set_layers(1 << 30); }),
              HasSubstr("model.layers: 1073741824, at most 4096"));
  EXPECT_THAT(fault([](auto& job) { job.mutable_training()->set_micro_batch(int64_t{1} << 32); }),
              HasSubstr("training.micro_batch: 4294967296, at most 16777216"));
  EXPECT_THAT(fault([](auto& job) {
                job.mutable_training()->set_global_batch(kMostSequences);
                job.mutable_model()->set_context(kMostContext);
                job.mutable_model()->set_hidden(kMostHidden);
              }),
              HasSubstr("too large: the activations of 16777216 sequences"));
  // As large as anything published, and more.
  v1::JobSpec job = Job();
  job.mutable_model()->set_layers(128);
  job.mutable_model()->set_hidden(25600);
  job.mutable_model()->set_ffn_hidden(102400);
  job.mutable_model()->set_context(1 << 17);
  job.mutable_training()->set_global_batch(3072);
  EXPECT_TRUE(CheckSizes(job).ok()) << CheckSizes(job);
}

TEST(PlanBuilder, MicroBatchForAuto) {
  EXPECT_EQ(ChooseMicroBatch(Job(), 1, 1), 48);
  EXPECT_EQ(ChooseMicroBatch(Job(), 1, 1, 48), 24);
  EXPECT_EQ(ChooseMicroBatch(Job(), 1, 1, 2), 1);
  v1::JobSpec long_job = Job();
  long_job.mutable_model()->set_context(4096);
  EXPECT_EQ(ChooseMicroBatch(long_job, 1, 1), 1);
  long_job.mutable_resources()->set_device(v1::DEVICE_KIND_CUDA);
  EXPECT_EQ(ChooseMicroBatch(long_job, 1, 1), 16);
  EXPECT_EQ(ChooseMicroBatch(Job(), 4, 2), 3);  // at least eight micro-batches of 24 sequences
}

}  // namespace
}  // namespace tercio::plan
