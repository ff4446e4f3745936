// The ranges of all ranks are the state, each element once, and none lies on another.
#include "worker/engine/state_store.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "plan/memory_map.h"
#include "worker/device/cpu_device.h"

namespace tercio::engine {
namespace {

v1::JobSpec Job(v1::Precision precision) {
  v1::JobSpec job;
  v1::ModelSpec& model = *job.mutable_model();
  model.set_architecture(v1::ARCHITECTURE_GPT2);
  model.set_layers(2);
  model.set_hidden(64);
  model.set_heads(4);
  model.set_kv_heads(4);
  model.set_ffn_hidden(256);
  model.set_context(24);
  model.set_bias(true);
  model.set_vocab_size(1009);
  job.mutable_training()->set_global_batch(8);
  job.mutable_training()->set_lanes(8);
  job.mutable_training()->set_precision(precision);
  job.mutable_resources()->set_device(v1::DEVICE_KIND_CPU);
  return job;
}

v1::RankPlan PlanOf(int zero_stage, int data, int data_index) {
  v1::RankPlan plan;
  v1::Layout& layout = *plan.mutable_layout();
  layout.set_tensor(1);
  layout.set_pipeline(1);
  layout.set_context_parallel(1);
  layout.set_data(data);
  layout.set_zero_stage(zero_stage);
  layout.set_micro_batch(1);
  layout.set_micro_batches(8 / data);
  plan.set_lanes(8);
  plan.mutable_placement()->set_data_index(data_index);
  return plan;
}

// Runs of memory by the buffer that they are in.
using Runs = std::map<std::string, std::vector<std::pair<const float*, int64_t>>>;

// The buffer's elements that ranges take are its own, and no two ranges share one.
void ExpectApart(Runs& all, Arena& arena, const std::string& buffer) {
  std::vector<std::pair<const float*, int64_t>>& runs = all[buffer];
  std::sort(runs.begin(), runs.end());
  const float* at = arena.Floats(buffer);
  const float* const end = at + arena.Bytes(buffer) / static_cast<int64_t>(sizeof(float));
  for (const auto& [begin, count] : runs) {
    EXPECT_GE(begin, at) << buffer;
    at = begin + count;
  }
  EXPECT_LE(at, end) << buffer;
}

TEST(StateStore, RangesOfAllRanksAreTheState) {
  for (const v1::Precision precision : {v1::PRECISION_FP32, v1::PRECISION_BF16}) {
    for (const auto& [zero_stage, data] :
         {std::pair(0, 1), {0, 2}, {1, 2}, {2, 4}, {3, 2}, {3, 8}}) {
      SCOPED_TRACE(absl::StrCat("stage ", zero_stage, " data ", data));
      const v1::JobSpec job = Job(precision);
      std::map<size_t, int64_t> covered;  // by tensor
      plan::StageTensors tensors;
      for (int rank = 0; rank < data; ++rank) {
        const v1::RankPlan plan = PlanOf(zero_stage, data, rank);
        tensors = plan::TensorsOfStage(job.model(), plan.layout(), 0);
        const plan::RankShards shards = plan::ShardsOfRank(job, plan, tensors);
        const auto device = device::CreateCpuDevice(1);
        auto arena = Arena::Allocate(plan::MemoryOfStage(job, plan.layout(), 0, 1), *device, "");
        ASSERT_TRUE(arena.ok()) << arena.status();
        const StateStore store(tensors, shards, *arena);
        EXPECT_FALSE(store.IsSplit());
        Runs runs;
        for (const StateRange& range : store.ranges()) {
          EXPECT_EQ(store.Find(range.tensor), &range);
          if (range.part.elements() == 0) continue;
          EXPECT_EQ(range.part.begin,
                    covered[range.tensor] % tensors.tensors[range.tensor].elements);
          covered[range.tensor] += range.part.elements();
          runs["parameters"].emplace_back(range.weights, range.part.elements());
          runs["adamw.m"].emplace_back(range.first_moment, range.part.elements());
          runs["adamw.v"].emplace_back(range.second_moment, range.part.elements());
        }
        for (const auto& [buffer, of_buffer] : runs) ExpectApart(runs, *arena, buffer);
      }
      for (size_t i = 0; i < tensors.tensors.size(); ++i) {
        if (!tensors.tensors[i].own_parameter) continue;
        const int copies = zero_stage == 0 ? data : 1;
        EXPECT_EQ(covered[i], copies * tensors.tensors[i].elements) << tensors.tensors[i].use;
      }
    }
  }
}

// With a share of the optimizer's state on disk each tensor is where its unit is, all of it.
TEST(StateStore, PartsOfTheStateAreNear) {
  for (const v1::Precision precision : {v1::PRECISION_FP32, v1::PRECISION_BF16}) {
    for (const auto& [zero_stage, data] : {std::pair(0, 1), {1, 2}, {2, 4}, {3, 2}}) {
      for (const double share : {0.25, 0.5, 0.75}) {
        SCOPED_TRACE(absl::StrCat("stage ", zero_stage, " data ", data, " share ", share));
        v1::JobSpec job = Job(precision);
        job.mutable_offload()->set_optimizer(v1::OFFLOAD_TIER_NVME);
        std::map<size_t, int64_t> covered;  // by tensor
        std::set<std::string> buffers;
        for (int rank = 0; rank < data; ++rank) {
          v1::RankPlan plan = PlanOf(zero_stage, data, rank);
          plan.mutable_layout()->set_offload_share(share);
          const plan::StageTensors tensors = plan::TensorsOfStage(job.model(), plan.layout(), 0);
          const plan::RankShards shards = plan::ShardsOfRank(job, plan, tensors);
          const bool splits_weights = precision == v1::PRECISION_BF16 && zero_stage < 3;
          EXPECT_TRUE(shards.splits_moments);
          EXPECT_EQ(shards.splits_master, splits_weights);
          const auto device = device::CreateCpuDevice(1);
          auto arena = Arena::Allocate(plan::MemoryOfStage(job, plan.layout(), 0, 1), *device,
                                       ::testing::TempDir());
          ASSERT_TRUE(arena.ok()) << arena.status();
          const StateStore store(tensors, shards, *arena);
          EXPECT_TRUE(store.IsSplit());
          EXPECT_TRUE(store.IsOnDisk(*arena));
          Runs runs;
          for (const StateRange& range : store.ranges()) {
            if (range.part.elements() == 0) continue;
            covered[range.tensor] += range.part.elements();
            const std::string suffix = range.part.near ? ".near" : "";
            EXPECT_EQ(arena->IsOnDisk(range.first_moment), !range.part.near);
            EXPECT_EQ(arena->IsOnDisk(range.second_moment), !range.part.near);
            EXPECT_EQ(arena->IsOnDisk(range.weights), splits_weights && !range.part.near);
            runs["parameters" + (splits_weights ? suffix : "")].emplace_back(range.weights,
                                                                             range.part.elements());
            runs["adamw.m" + suffix].emplace_back(range.first_moment, range.part.elements());
            runs["adamw.v" + suffix].emplace_back(range.second_moment, range.part.elements());
          }
          for (const auto& [buffer, of_buffer] : runs) {
            ExpectApart(runs, *arena, buffer);
            buffers.insert(buffer);
          }
        }
        // A small unit is on one of the ranks only.
        EXPECT_EQ(buffers.size(), precision == v1::PRECISION_BF16 && zero_stage < 3 ? 6u : 5u);
        const plan::StageTensors tensors =
            plan::TensorsOfStage(job.model(), PlanOf(zero_stage, data, 0).layout(), 0);
        for (size_t i = 0; i < tensors.tensors.size(); ++i) {
          if (!tensors.tensors[i].own_parameter) continue;
          EXPECT_EQ(covered[i], tensors.tensors[i].elements) << tensors.tensors[i].use;
        }
      }
    }
  }
}

TEST(StateStore, AFurtherUseHasNoStateOfItsOwn) {
  const v1::JobSpec job = Job(v1::PRECISION_FP32);
  const v1::RankPlan plan = PlanOf(0, 1, 0);
  const plan::StageTensors tensors = plan::TensorsOfStage(job.model(), plan.layout(), 0);
  const plan::RankShards shards = plan::ShardsOfRank(job, plan, tensors);
  const auto device = device::CreateCpuDevice(1);
  auto arena = Arena::Allocate(plan::MemoryOfStage(job, plan.layout(), 0, 1), *device, "");
  ASSERT_TRUE(arena.ok()) << arena.status();
  const StateStore store(tensors, shards, *arena);
  int further = 0;
  for (size_t i = 0; i < tensors.tensors.size(); ++i) {
    EXPECT_EQ(store.Find(i) != nullptr, tensors.tensors[i].own_parameter);
    further += tensors.tensors[i].own_parameter ? 0 : 1;
  }
  EXPECT_EQ(further, 1);  // the tied head
}

}  // namespace
}  // namespace tercio::engine
