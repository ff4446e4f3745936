// Data ranks that divide the training state have the bits of one rank that has all of it: losses,
// norms and the whole state, in every precision, with every other kind of parallelism.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "plan/names.h"
#include "plan/state_shards.h"
#include "tests/parity/layout_case.h"
#include "tests/parity/thread_ranks.h"

namespace tercio::testing {
namespace {

// Large enough that every tensor of a layer is cut, and that shards begin inside of tensors.
v1::JobSpec Wide(v1::JobSpec spec) {
  spec.mutable_model()->set_layers(2);
  spec.mutable_model()->set_hidden(64);
  return spec;
}

v1::JobSpec With(v1::JobSpec spec, v1::Precision precision) {
  spec.mutable_training()->set_precision(precision);
  return spec;
}

constexpr Case kOneRank = {1, 1, 1, 4, 1, k1f1b};

Case Divided(Case c, int stage = 1) {
  c.zero_stage = stage;
  return c;
}

// Four lanes, so that micro-batches of two sequences are a round each, and those of one half of it.
v1::JobSpec InRounds(v1::JobSpec spec) {
  spec.mutable_training()->set_lanes(4);
  return spec;
}

// Cut after three steps in any of the layouts and continued in any other, a run has the state and
// the loss of one that was not disturbed.
void ExpectAnyResumption(const v1::JobSpec& spec, const std::vector<Case>& layouts) {
  RunOptions whole;
  whole.steps = 6;
  const RunResult undisturbed = Train(spec, kOneRank, whole);
  RunOptions first;
  first.steps = 3;
  for (const Case& before : layouts) {
    const RunResult half = Train(spec, before, first);
    for (const Case& after : layouts) {
      SCOPED_TRACE(NameOf(before) + " then " + NameOf(after));
      RunOptions second = first;
      second.first_step = 4;
      second.state = &half.state;
      const RunResult rest = Train(spec, after, second);
      ASSERT_EQ(rest.steps.size(), 3u);
      EXPECT_EQ(rest.steps.back().loss, undisturbed.steps.back().loss);
      EXPECT_EQ(rest.state, undisturbed.state);
    }
  }
}

TEST(Sharding, EveryModelAndPrecisionHasTheBitsOfOneRank) {
  for (const v1::JobSpec& model :
       {Wide(SmallJob()), Wide(SmallLlama()), SmallBert(kPost), SmallClassifier(), SmallT5()}) {
    for (const v1::Precision precision :
         {v1::PRECISION_FP32, v1::PRECISION_BF16, v1::PRECISION_FP16}) {
      const v1::JobSpec spec = With(model, precision);
      SCOPED_TRACE(plan::TextOf(spec.model().architecture()) + " " + plan::TextOf(precision));
      ExpectSameGrid(spec,
                     {kOneRank, Divided({1, 1, 2, 2, 1, k1f1b}), Divided({1, 1, 8, 1, 1, k1f1b}),
                      Divided({1, 2, 2, 2, 1, k1f1b, kFull}), Divided({1, 1, 1, 8, 1, k1f1b})});
    }
  }
}

// Gradients, and with stage 3 weights.
TEST(Sharding, LaterStagesHaveTheBitsOfOneRank) {
  for (const v1::JobSpec& model :
       {Wide(SmallJob()), Wide(SmallLlama()), SmallBert(kPost), SmallClassifier(), SmallT5()}) {
    for (const v1::Precision precision :
         {v1::PRECISION_FP32, v1::PRECISION_BF16, v1::PRECISION_FP16}) {
      const v1::JobSpec spec = InRounds(With(model, precision));
      SCOPED_TRACE(plan::TextOf(spec.model().architecture()) + " " + plan::TextOf(precision));
      ExpectSameGrid(
          spec, {kOneRank, Divided({1, 1, 2, 2, 1, k1f1b}, 2), Divided({1, 1, 2, 1, 1, k1f1b}, 3),
                 Divided({1, 1, 4, 2, 1, k1f1b}, 3), Divided({1, 2, 2, 1, 1, kGpipe, kFull}, 2),
                 Divided({1, 2, 2, 2, 1, kGpipe, kFull}, 3), Divided({1, 1, 1, 8, 1, k1f1b}, 3)});
    }
  }
}

TEST(Sharding, LaterStagesWithEveryKindOfParallelism) {
  for (const v1::JobSpec& model : {SmallJob(), SmallBert(kPre), SmallT5()}) {
    const v1::JobSpec spec = InRounds(model);
    SCOPED_TRACE(plan::TextOf(spec.model().architecture()));
    for (const Case& c : std::vector<Case>{{2, 1, 4, 1, 1, k1f1b},
                                           {2, 2, 2, 2, 1, k1f1b},
                                           {2, 2, 2, 1, 1, kGpipe, kFull, 1, true},
                                           {2, 1, 2, 2, 2, k1f1b, kNone, 1, true},
                                           {1, 2, 2, 2, 1, kInterleaved, kNone, 2}}) {
      SCOPED_TRACE(NameOf(c));
      const RunResult whole = Train(spec, c);
      ExpectSameBits(whole, Train(spec, Divided(c, 2)));
      ExpectSameBits(whole, Train(spec, Divided(c, 3)));
    }
  }
}

// Groups of ranks that divide the state, replicas of each other; and gathered layers that are kept
// whole or by neighbours, or gathered further ahead.
Case InGroups(Case c, int stage, int shard, int reshard_after_forward = 0, int prefetch = 1) {
  c.zero_stage = stage;
  c.shard = shard;
  c.reshard_after_forward = reshard_after_forward;
  c.prefetch = prefetch;
  return c;
}

TEST(Sharding, GroupsAndKeptLayersHaveTheBitsOfOneRank) {
  for (const v1::JobSpec& model :
       {Wide(SmallJob()), Wide(SmallLlama()), SmallBert(kPost), SmallT5()}) {
    for (const v1::Precision precision :
         {v1::PRECISION_FP32, v1::PRECISION_BF16, v1::PRECISION_FP16}) {
      const v1::JobSpec spec = InRounds(With(model, precision));
      SCOPED_TRACE(plan::TextOf(spec.model().architecture()) + " " + plan::TextOf(precision));
      ExpectSameGrid(spec, {kOneRank, InGroups({1, 1, 4, 2, 1, k1f1b}, 1, 2),
                            InGroups({1, 1, 4, 1, 1, k1f1b}, 2, 2),
                            InGroups({1, 1, 4, 2, 1, k1f1b}, 3, 2, 0, 2),
                            InGroups({1, 1, 4, 1, 1, k1f1b}, 3, 0, 2, 0),
                            InGroups({1, 1, 2, 1, 1, k1f1b}, 3, 0, plan::kKeepsWeights)});
    }
  }
}

TEST(Sharding, GroupsWithEveryKindOfParallelism) {
  v1::JobSpec spec = SmallJob();
  spec.mutable_training()->set_lanes(8);
  for (const Case& c : std::vector<Case>{{2, 1, 4, 1, 1, k1f1b},
                                         {2, 2, 4, 1, 1, kGpipe, kFull, 1, true},
                                         {1, 2, 4, 1, 1, kInterleaved, kNone, 2}}) {
    SCOPED_TRACE(NameOf(c));
    const RunResult whole = Train(spec, c);
    for (const int stage : {1, 2, 3}) ExpectSameBits(whole, Train(spec, InGroups(c, stage, 2)));
    ExpectSameBits(whole, Train(spec, InGroups(c, 3, 0, 2, 2)));
  }
}

// Eight lanes of four ranks in two groups: two rounds each, of neighbouring lanes.
TEST(Sharding, RoundsOfGroups) {
  v1::JobSpec spec = Wide(SmallLlama());
  spec.mutable_training()->set_global_batch(32);
  spec.mutable_training()->set_lanes(32);
  ExpectSameGrid(spec, {kOneRank, InGroups({1, 1, 4, 1, 1, k1f1b}, 2, 2),
                        InGroups({1, 1, 8, 1, 1, k1f1b}, 3, 4, 2, 2),
                        InGroups({1, 2, 4, 1, 1, kGpipe}, 3, 2)});
}

TEST(Sharding, ACheckpointOfGroupsLoadsInAnyDivision) {
  const v1::JobSpec spec = With(SmallJob(), v1::PRECISION_BF16);
  RunOptions whole;
  whole.steps = 6;
  const RunResult undisturbed = Train(spec, kOneRank, whole);
  RunOptions first;
  first.steps = 3;
  RunOptions second = first;
  second.first_step = 4;
  const Case groups = InGroups({1, 1, 4, 1, 1, k1f1b}, 3, 2);
  for (const auto& [before, after] :
       {std::pair(groups, Divided({1, 2, 2, 1, 1, k1f1b}, 1)), std::pair(kOneRank, groups)}) {
    const RunResult half = Train(spec, before, first);
    second.state = &half.state;
    EXPECT_EQ(Train(spec, after, second).state, undisturbed.state);
  }
}

TEST(Sharding, AGroupThatDoesNotDivideTheRanksIsRefused) {
  const auto fault_of = [](int data, int shard, int kept) {
    v1::JobSpec spec = SmallJob();
    spec.mutable_training()->set_global_batch(24);
    spec.mutable_training()->set_micro_batch(1);
    spec.mutable_parallelism()->set_data(data);
    spec.mutable_parallelism()->set_zero_stage(3);
    spec.mutable_parallelism()->set_shard(shard);
    spec.mutable_parallelism()->set_reshard_after_forward(kept);
    spec.mutable_resources()->set_ranks(data);
    return std::string(TrainWithThreads(spec, {}).status().message());
  };
  using ::testing::HasSubstr;
  EXPECT_THAT(fault_of(4, 3, 0), HasSubstr("shard 3 does not divide data 4"));
  EXPECT_THAT(fault_of(6, 2, 0), HasSubstr("makes 3 replicas, which must be a power of two"));
  EXPECT_THAT(fault_of(4, 0, 3), HasSubstr("reshard_after_forward 3 must divide the 4 ranks"));
}

v1::JobSpec InBlocks(v1::JobSpec spec, v1::BlockFormat weights, v1::BlockFormat gradients) {
  spec.mutable_training()->set_weight_format(weights);
  spec.mutable_training()->set_gradient_format(gradients);
  return spec;
}

TEST(Sharding, BlockFormatsHaveTheBitsOfOneRank) {
  for (const v1::JobSpec& model :
       {Wide(SmallJob()), Wide(SmallLlama()), SmallBert(kPost), SmallT5()}) {
    for (const auto& [precision, gradients] :
         {std::pair(v1::PRECISION_FP32, v1::BLOCK_FORMAT_INT8),
          std::pair(v1::PRECISION_BF16, v1::BLOCK_FORMAT_INT4),
          std::pair(v1::PRECISION_FP16, v1::BLOCK_FORMAT_INT8)}) {
      const v1::JobSpec spec =
          InBlocks(InRounds(With(model, precision)), v1::BLOCK_FORMAT_INT8, gradients);
      SCOPED_TRACE(plan::TextOf(spec.model().architecture()) + " " + plan::TextOf(precision));
      ExpectSameGrid(
          spec, {kOneRank, Case{1, 1, 2, 2, 1, k1f1b}, Case{1, 2, 2, 1, 2, kGpipe, kFull},
                 Divided({1, 1, 2, 2, 1, k1f1b}, 1), Divided({1, 1, 2, 1, 1, k1f1b}, 2),
                 Divided({1, 1, 4, 2, 1, k1f1b}, 3), Divided({1, 2, 2, 2, 1, k1f1b}, 3),
                 InGroups({1, 1, 4, 1, 1, k1f1b}, 2, 2),
                 InGroups({1, 1, 4, 1, 1, k1f1b}, 3, 0, 2, 2), Divided({1, 1, 1, 8, 1, k1f1b}, 3)});
    }
  }
}

TEST(Sharding, BlockFormatsWithEveryKindOfParallelism) {
  const v1::JobSpec spec =
      InBlocks(InRounds(SmallJob()), v1::BLOCK_FORMAT_INT8, v1::BLOCK_FORMAT_INT4);
  for (const Case& c : std::vector<Case>{{2, 2, 2, 2, 1, k1f1b},
                                         {2, 1, 2, 2, 2, k1f1b, kNone, 1, true},
                                         {1, 2, 2, 2, 1, kInterleaved, kNone, 2}}) {
    SCOPED_TRACE(NameOf(c));
    const RunResult whole = Train(spec, c);
    for (const int stage : {1, 2, 3}) ExpectSameBits(whole, Train(spec, Divided(c, stage)));
  }
}

// What is rounded is what the job says: neither format is without effect, nor does one imply the
// other.
TEST(Sharding, BlockFormatsChangeWhatTheyAreFor) {
  const v1::JobSpec spec = Wide(SmallJob());
  RunOptions one;
  one.steps = 1;
  const auto first = [&](v1::BlockFormat weights, v1::BlockFormat gradients) {
    return Train(InBlocks(spec, weights, gradients), kOneRank, one).steps.at(0);
  };
  const engine::StepResult plain = first(v1::BLOCK_FORMAT_NONE, v1::BLOCK_FORMAT_NONE);
  const engine::StepResult weights = first(v1::BLOCK_FORMAT_INT8, v1::BLOCK_FORMAT_NONE);
  const engine::StepResult gradients = first(v1::BLOCK_FORMAT_NONE, v1::BLOCK_FORMAT_INT8);
  const engine::StepResult coarse = first(v1::BLOCK_FORMAT_NONE, v1::BLOCK_FORMAT_INT4);
  EXPECT_NE(weights.loss, plain.loss);
  EXPECT_NEAR(weights.loss, plain.loss, 0.01 * plain.loss);
  EXPECT_EQ(gradients.loss, plain.loss);
  EXPECT_NE(gradients.grad_norm, plain.grad_norm);
  EXPECT_NEAR(gradients.grad_norm, plain.grad_norm, 0.01 * plain.grad_norm);
  EXPECT_NEAR(coarse.grad_norm, plain.grad_norm, 0.1 * plain.grad_norm);
  EXPECT_NE(coarse.grad_norm, gradients.grad_norm);
}

TEST(Sharding, ACheckpointOfBlockFormatsLoadsInAnyDivision) {
  ExpectAnyResumption(InBlocks(InRounds(SmallJob()), v1::BLOCK_FORMAT_INT8, v1::BLOCK_FORMAT_INT8),
                      {kOneRank, Case{1, 1, 2, 2, 1, k1f1b}, Divided({1, 1, 4, 1, 1, k1f1b}, 1),
                       Divided({1, 2, 2, 1, 1, k1f1b}, 3)});
}

v1::JobSpec OnDisk(v1::JobSpec spec) {
  spec.mutable_offload()->set_optimizer(v1::OFFLOAD_TIER_NVME);
  spec.mutable_offload()->set_activations(v1::OFFLOAD_TIER_NVME);
  return spec;
}

TEST(Sharding, StateOnDiskHasTheBitsOfStateInMemory) {
  for (const v1::JobSpec& model :
       {Wide(SmallJob()), Wide(SmallLlama()), SmallBert(kPost), SmallT5(),
        InBlocks(Wide(SmallJob()), v1::BLOCK_FORMAT_INT8, v1::BLOCK_FORMAT_INT8)}) {
    for (const v1::Precision precision :
         {v1::PRECISION_FP32, v1::PRECISION_BF16, v1::PRECISION_FP16}) {
      const v1::JobSpec spec = InRounds(With(model, precision));
      SCOPED_TRACE(plan::TextOf(spec.model().architecture()) + " " + plan::TextOf(precision));
      const RunResult in_memory = Train(spec, kOneRank);
      v1::JobSpec disk = OnDisk(spec);
      for (const Case& c :
           {kOneRank, Divided({1, 1, 2, 1, 1, k1f1b}, 1), Divided({2, 2, 2, 1, 1, k1f1b}, 2)}) {
        SCOPED_TRACE(NameOf(c));
        ExpectSameBits(c.tensor == 1 ? in_memory : Train(spec, c), Train(disk, c));
      }
      disk.mutable_offload()->set_parameters(v1::OFFLOAD_TIER_NVME);
      for (const Case& c : {Divided(kOneRank, 3), InGroups({1, 1, 4, 1, 1, k1f1b}, 3, 2, 0, 2)}) {
        SCOPED_TRACE(NameOf(c));
        ExpectSameBits(in_memory, Train(disk, c));
      }
    }
  }
}

// A rank may have nothing of a small unit but padding between its tensors.
TEST(Sharding, PartsThatAreOnlyPadding) {
  v1::JobSpec spec = SmallJob();
  spec.mutable_model()->set_hidden(24);
  const RunResult whole = Train(spec, kOneRank);
  for (const int stage : {1, 2, 3}) {
    SCOPED_TRACE(stage);
    ExpectSameBits(whole, Train(spec, Divided({1, 1, 4, 1, 1, k1f1b}, stage)));
  }
}

// A part of the optimizer's state, by units: moments, and in 16 bits or a block format the weights.
TEST(Sharding, PartsOnDiskHaveTheBitsOfStateInMemory) {
  for (const v1::JobSpec& model :
       {Wide(SmallJob()),
        InBlocks(Wide(SmallJob()), v1::BLOCK_FORMAT_INT8, v1::BLOCK_FORMAT_INT8)}) {
    for (const v1::Precision precision : {v1::PRECISION_FP32, v1::PRECISION_BF16}) {
      const v1::JobSpec spec = InRounds(With(model, precision));
      SCOPED_TRACE(plan::TextOf(precision));
      const RunResult in_memory = Train(spec, kOneRank);
      for (const double share : {0.25, 0.5}) {
        v1::JobSpec disk = OnDisk(spec);
        disk.mutable_offload()->set_share(share);
        SCOPED_TRACE(disk.offload().ShortDebugString());
        for (const Case& c :
             {kOneRank, Divided({1, 1, 2, 1, 1, k1f1b}, 1), Divided({1, 2, 2, 1, 1, k1f1b}, 2),
              Divided(kOneRank, 3), Divided({1, 1, 2, 1, 1, k1f1b}, 3)}) {
          SCOPED_TRACE(NameOf(c));
          ExpectSameBits(in_memory, Train(disk, c));
        }
        disk.mutable_offload()->set_parameters(v1::OFFLOAD_TIER_NVME);
        for (const Case& c : {Divided(kOneRank, 3), InGroups({1, 1, 4, 1, 1, k1f1b}, 3, 2, 0, 2)}) {
          SCOPED_TRACE(NameOf(c));
          ExpectSameBits(in_memory, Train(disk, c));
        }
      }
    }
  }
}

void ExpectCheckpointsLoadInMemoryAndBack(double share) {
  const v1::JobSpec spec = With(SmallJob(), v1::PRECISION_BF16);
  v1::JobSpec disk = OnDisk(spec);
  if (share < 1) disk.mutable_offload()->set_share(share);
  disk.mutable_offload()->set_parameters(v1::OFFLOAD_TIER_NVME);
  disk.mutable_checkpoint()->set_peer_copies(1);
  const Case layout = Divided({1, 1, 2, 1, 1, k1f1b}, 3);
  RunOptions whole;
  whole.steps = 6;
  const RunResult undisturbed = Train(spec, kOneRank, whole);
  RunOptions first;
  first.steps = 3;
  const RunResult half = Train(disk, layout, first);
  RunOptions second = first;
  second.first_step = 4;
  second.state = &half.state;
  EXPECT_EQ(Train(spec, kOneRank, second).state, undisturbed.state);
  second.state = nullptr;
  second.copies = &half.copies;
  EXPECT_EQ(Train(disk, layout, second).state, undisturbed.state);
}

TEST(Sharding, ACheckpointOfStateOnDiskLoadsInMemoryAndBack) {
  for (const double share : {1.0, 0.5}) {
    SCOPED_TRACE(share);
    ExpectCheckpointsLoadInMemoryAndBack(share);
  }
}

TEST(Sharding, AMicroBatchIsPartOfOneRound) {
  v1::JobSpec spec = SmallJob();
  spec.mutable_parallelism()->set_data(2);
  spec.mutable_parallelism()->set_zero_stage(2);
  spec.mutable_resources()->set_ranks(2);
  spec.mutable_training()->set_micro_batch(2);
  const absl::Status status = TrainWithThreads(spec, {}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              ::testing::HasSubstr("zero_stage 2: micro_batch 2 does not divide the 1 sequences of "
                                   "a lane"));
}

TEST(Sharding, EveryKindOfParallelismHasTheBitsOfUndividedRanks) {
  for (const v1::JobSpec& spec : {SmallJob(), SmallBert(kPre), SmallT5()}) {
    SCOPED_TRACE(plan::TextOf(spec.model().architecture()));
    for (const Case& c : std::vector<Case>{{2, 1, 4, 1, 1, k1f1b},
                                           {2, 2, 2, 2, 1, k1f1b},
                                           {2, 2, 2, 1, 1, kGpipe, kFull, 1, true},
                                           {2, 1, 2, 2, 2, k1f1b, kNone, 1, true},
                                           {1, 2, 4, 1, 1, kInterleaved, kNone, 2}}) {
      SCOPED_TRACE(NameOf(c));
      ExpectSameBits(Train(spec, c), Train(spec, Divided(c)));
    }
  }
}

TEST(Sharding, FrozenTensorsTiedHeadsAndManyLanes) {
  v1::JobSpec spec = Wide(SmallLlama());
  spec.mutable_model()->set_untied_head(false);
  spec.mutable_training()->set_global_batch(32);
  spec.mutable_training()->set_lanes(32);
  spec.mutable_training()->add_frozen("layers.1.*");
  ExpectSameGrid(spec, {kOneRank, Divided({1, 1, 4, 2, 1, k1f1b}), Divided({1, 2, 4, 4, 1, kGpipe}),
                        Divided({1, 2, 2, 1, 1, kGpipe}, 2)});
}

// A number of ranks that is no power of two has another order of sums than one rank, but no other
// one for being divided.
TEST(Sharding, ThreeRanks) {
  v1::JobSpec spec = SmallJob();
  spec.mutable_training()->set_global_batch(12);
  ExpectSameGrid(spec, {{1, 1, 3, 4, 1, k1f1b},
                        Divided({1, 1, 3, 4, 1, k1f1b}),
                        Divided({1, 1, 3, 4, 1, k1f1b}, 2),
                        Divided({1, 1, 3, 2, 1, k1f1b}, 2)});
}

TEST(Sharding, AnyCheckpointLoadsInAnyDivision) {
  for (const v1::Precision precision : {v1::PRECISION_FP32, v1::PRECISION_FP16}) {
    ExpectAnyResumption(With(SmallJob(), precision),
                        {kOneRank, Divided({1, 1, 4, 2, 1, k1f1b}), Divided({1, 2, 2, 1, 1, k1f1b}),
                         Divided({1, 1, 2, 1, 1, k1f1b}, 2), Divided({1, 2, 2, 1, 1, k1f1b}, 3)});
  }
}

// Frozen weights are saved as they are, without moments, and load in any layout.
TEST(Sharding, CheckpointsOfFrozenTensorsLoadInAnyDivision) {
  for (const v1::Precision precision : {v1::PRECISION_FP32, v1::PRECISION_BF16}) {
    v1::JobSpec spec = With(SmallJob(), precision);
    for (const char* pattern : {"embedding.*", "layers.0.*", "layers.*.mlp.*"}) {
      spec.mutable_training()->add_frozen(pattern);
    }
    ExpectAnyResumption(
        spec, {kOneRank, Divided({1, 1, 4, 2, 1, k1f1b}), Divided({1, 2, 2, 1, 1, k1f1b}, 2),
               Divided({1, 2, 2, 1, 1, k1f1b}, 3)});
    const RunResult result = Train(spec, kOneRank);
    EXPECT_TRUE(result.state.contains("layers.0.attention.query.weight"));
    EXPECT_FALSE(result.state.contains("adamw.m.layers.0.attention.query.weight"));
    EXPECT_TRUE(result.state.contains("adamw.m.layers.1.attention.query.weight"));
    EXPECT_FALSE(result.state.contains("adamw.v.layers.1.mlp.up.weight"));
  }
}

// Weights of the job's format are held as they were loaded, others are rounded, and a rank says so.
TEST(Sharding, FrozenWeightsAreRoundedToThePrecision) {
  v1::JobSpec spec = With(SmallJob(), v1::PRECISION_FP32);
  spec.mutable_training()->add_frozen("layers.0.*");
  const RunResult exact = Train(spec, kOneRank);
  spec = With(spec, v1::PRECISION_BF16);
  RunOptions options;
  options.state = &exact.state;
  const RunResult rounded = Train(spec, kOneRank, options);
  EXPECT_FALSE(rounded.holds_what_it_loaded);
  options.state = &rounded.state;
  const RunResult again = Train(spec, Divided({1, 2, 2, 1, 1, k1f1b}, 3), options);
  EXPECT_TRUE(again.holds_what_it_loaded);
  const char* const frozen = "layers.0.mlp.up.weight";
  EXPECT_NE(rounded.state.at(frozen), exact.state.at(frozen));
  EXPECT_EQ(again.state.at(frozen), rounded.state.at(frozen));
}

TEST(Sharding, CopiesOfShardsHaveTheSameBits) {
  for (const v1::Precision precision : {v1::PRECISION_FP32, v1::PRECISION_BF16}) {
    v1::JobSpec spec = With(SmallJob(), precision);
    spec.mutable_training()->add_frozen("layers.1.*");
    spec.mutable_checkpoint()->set_peer_copies(1);
    // What ranks have of weights is no more than their shard.
    const Case layout = Divided({2, 2, 2, 1, 1, k1f1b}, 3);
    RunOptions whole;
    whole.steps = 6;
    const RunResult undisturbed = Train(spec, layout, whole);
    RunOptions first;
    first.steps = 3;
    const RunResult half = Train(spec, layout, first);
    RunOptions second = first;
    second.first_step = 4;
    second.copies = &half.copies;
    const RunResult rest = Train(spec, layout, second);
    ASSERT_EQ(rest.steps.size(), 3u);
    EXPECT_EQ(rest.steps.back().loss, undisturbed.steps.back().loss);
    EXPECT_EQ(rest.state, undisturbed.state);
  }
}

// Ranks save what they own: no element twice, and each about as much as the others.
TEST(Sharding, CopiesOfARankAreItsShard) {
  v1::JobSpec spec = Wide(SmallJob());
  spec.mutable_checkpoint()->set_peer_copies(1);
  RunOptions one;
  one.steps = 1;
  const auto elements = [&](const Case& c) {
    std::vector<size_t> of_ranks;
    for (const auto& [rank, slices] : Train(spec, c, one).copies) {
      size_t all = 0;
      for (const std::vector<float>& slice : slices) all += slice.size();
      of_ranks.push_back(all);
    }
    return of_ranks;
  };
  const std::vector<size_t> whole = elements({1, 1, 2, 2, 1, k1f1b});
  const std::vector<size_t> halves = elements(Divided({1, 1, 2, 2, 1, k1f1b}));
  ASSERT_EQ(halves.size(), 2u);
  EXPECT_EQ(halves[0] + halves[1], whole[0]);
  EXPECT_LT(std::max(halves[0], halves[1]), whole[0] * 6 / 10);
}

// Groups hold the same shards: the rank whose shard differs is named among those that have gathered
// its weights.
TEST(Sharding, ShardsThatDifferAreFound) {
  for (const int stage : {1, 2, 3}) {
    SCOPED_TRACE(stage);
    RunOptions options;
    options.flip_bit_rank = 3;
    const RunResult result = Train(With(SmallJob(), v1::PRECISION_BF16),
                                   InGroups({1, 1, 8, 1, 1, k1f1b}, stage, 2), options);
    EXPECT_FALSE(result.replicas.equal);
    EXPECT_EQ(result.replicas.odd_rank, 3) << result.replicas.text;
  }
}

TEST(Sharding, WeightsThatDifferAreFound) {
  for (const v1::Precision precision : {v1::PRECISION_FP32, v1::PRECISION_BF16}) {
    RunOptions options;
    options.flip_bit_rank = 2;
    const int stage = precision == v1::PRECISION_FP32 ? 1 : 3;
    const RunResult result =
        Train(With(SmallJob(), precision), Divided({1, 1, 4, 1, 1, k1f1b}, stage), options);
    EXPECT_FALSE(result.replicas.equal);
    EXPECT_EQ(result.replicas.odd_rank, 2);
    EXPECT_THAT(result.replicas.text, ::testing::HasSubstr("rank 2"));
  }
}

}  // namespace
}  // namespace tercio::testing
