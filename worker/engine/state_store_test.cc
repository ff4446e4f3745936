// The ranges of all ranks are the state, each element once, and none lies on another.
#include "worker/engine/state_store.h"

#include <algorithm>
#include <map>
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

// The buffer's elements that ranges take are its own, and no two ranges share one.
void ExpectApart(std::vector<std::pair<const float*, int64_t>> runs, Arena& arena,
                 const char* buffer) {
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
        std::vector<std::pair<const float*, int64_t>> weights, first, second;
        for (const StateRange& range : store.ranges()) {
          EXPECT_EQ(store.Find(range.tensor), &range);
          if (range.part.elements() == 0) continue;
          EXPECT_EQ(range.part.begin,
                    covered[range.tensor] % tensors.tensors[range.tensor].elements);
          covered[range.tensor] += range.part.elements();
          weights.emplace_back(range.weights, range.part.elements());
          first.emplace_back(range.first_moment, range.part.elements());
          second.emplace_back(range.second_moment, range.part.elements());
        }
        ExpectApart(weights, *arena, "parameters");
        ExpectApart(first, *arena, "adamw.m");
        ExpectApart(second, *arena, "adamw.v");
      }
      for (size_t i = 0; i < tensors.tensors.size(); ++i) {
        if (!tensors.tensors[i].own_parameter) continue;
        const int copies = zero_stage == 0 ? data : 1;
        EXPECT_EQ(covered[i], copies * tensors.tensors[i].elements) << tensors.tensors[i].use;
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
