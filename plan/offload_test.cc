// Which units of the optimizer's state stay near, and what both buffers of it take.
#include "plan/offload.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "plan/memory_map.h"
#include "plan/state_shards.h"

namespace tercio::plan {
namespace {

using ::testing::ElementsAre;

v1::JobSpec Job(v1::Precision precision = v1::PRECISION_BF16) {
  v1::JobSpec job;
  v1::ModelSpec& model = *job.mutable_model();
  model.set_architecture(v1::ARCHITECTURE_GPT2);
  model.set_layers(4);
  model.set_hidden(64);
  model.set_heads(4);
  model.set_kv_heads(4);
  model.set_ffn_hidden(256);
  model.set_context(24);
  model.set_bias(true);
  model.set_vocab_size(1009);
  job.mutable_training()->set_global_batch(8);
  job.mutable_training()->set_precision(precision);
  job.mutable_resources()->set_device(v1::DEVICE_KIND_CPU);
  job.mutable_offload()->set_optimizer(v1::OFFLOAD_TIER_NVME);
  return job;
}

v1::Layout LayoutOf(int pipeline, int data, int zero_stage) {
  v1::Layout layout;
  layout.set_tensor(1);
  layout.set_pipeline(pipeline);
  layout.set_data(data);
  layout.set_context_parallel(1);
  layout.set_schedule(v1::PIPELINE_SCHEDULE_1F1B);
  layout.set_zero_stage(zero_stage);
  layout.set_micro_batch(1);
  layout.set_micro_batches(8 / data);
  return layout;
}

std::vector<std::string> NearUnits(const StageTensors& tensors, double share) {
  std::vector<StateUnit> units = StateUnitsOf(tensors, 2);
  KeepNear(tensors, share, &units);
  std::vector<std::string> names;
  for (const StateUnit& unit : units) {
    if (unit.near) names.push_back(unit.name);
  }
  return names;
}

// Four layers of 50 thousand parameters each, a table of 65 thousand, and little else.
TEST(OffloadShare, TheLastLayersStayNearFirst) {
  const StageTensors tensors = TensorsOfStage(Job().model(), LayoutOf(1, 2, 1), 0);
  EXPECT_THAT(NearUnits(tensors, 1), ElementsAre());
  EXPECT_THAT(NearUnits(tensors, 0), ElementsAre());
  EXPECT_THAT(NearUnits(tensors, 0.75), ElementsAre("embedding", "layers.3", "head"));
  EXPECT_THAT(NearUnits(tensors, 0.5), ElementsAre("embedding", "layers.2", "layers.3", "head"));
  EXPECT_THAT(NearUnits(tensors, 0.25),
              ElementsAre("layers.0", "layers.1", "layers.2", "layers.3", "head"));
  // Something is always elsewhere: here the last norm.
  EXPECT_THAT(NearUnits(tensors, 1e-9),
              ElementsAre("table", "embedding", "layers.0", "layers.1", "layers.2", "layers.3"));
}

// Whatever the sizes: as much stays near as the share allows, and no more of it where more has to
// go elsewhere.
TEST(OffloadShare, LessStaysNearAsTheShareRises) {
  constexpr uint64_t kSeed = 20261128;
  std::printf("seed %llu\n", static_cast<unsigned long long>(kSeed));
  std::mt19937_64 random(kSeed);
  for (int i = 0; i < 50; ++i) {
    v1::ModelSpec model = Job().model();
    model.set_layers(static_cast<int32_t>(2 + 2 * (random() % 5)));
    model.set_hidden(static_cast<int32_t>(4 * (1 + random() % 40)));
    model.set_vocab_size(static_cast<int32_t>(11 + random() % 3000));
    model.set_untied_head(random() % 2 == 0);
    const StageTensors tensors = TensorsOfStage(model, LayoutOf(1, 1, 0), 0);
    int64_t last = tensors.parameter_elements;
    for (int part = 1; part < 40; ++part) {
      std::vector<StateUnit> units = StateUnitsOf(tensors, 1);
      const double share = part / 40.0;
      KeepNear(tensors, share, &units);
      int64_t near = 0;
      int64_t smallest_far = tensors.parameter_elements;
      int64_t all = 0;
      for (const StateUnit& unit : units) {
        if (!unit.own_parameter) continue;
        all += unit.elements();
        if (unit.near) near += unit.elements();
        if (!unit.near) smallest_far = std::min(smallest_far, unit.elements());
      }
      SCOPED_TRACE(absl::StrCat(model.ShortDebugString(), " share ", share));
      EXPECT_LE(static_cast<double>(near), (1 - share) * static_cast<double>(all));
      EXPECT_GT(static_cast<double>(near + smallest_far),
                (1 - share) * static_cast<double>(all) - 1);
      EXPECT_LE(near, last);
      last = near;
    }
  }
}

// Parts of units in either buffer do not overlap, and fill it for the rank that has the most.
TEST(OffloadShare, BothBuffersHoldTheirUnits) {
  for (const int shards : {1, 2, 3, 8}) {
    const StageTensors tensors = TensorsOfStage(Job().model(), LayoutOf(1, 1, 1), 0);
    std::vector<StateUnit> units = StateUnitsOf(tensors, shards);
    KeepNear(tensors, 0.5, &units);
    const SplitElements sizes = SplitElementsOf(UnitKindsOf(tensors, shards, 0.5));
    SplitElements most;
    for (int rank = 0; rank < shards; ++rank) {
      const StateShard shard = ShardOf(tensors, units, rank);
      SplitElements end;
      for (const StateUnit& unit : units) {
        for (size_t i = unit.first_tensor; i < unit.first_tensor + unit.tensor_count; ++i) {
          const ShardPart& part = shard.part(i);
          if (!unit.own_parameter || part.elements() == 0) continue;
          EXPECT_EQ(part.near, unit.near);
          int64_t& at = part.near ? end.near : end.far;
          EXPECT_GE(part.split_offset, at);
          EXPECT_EQ(part.split_offset % 16, part.state_offset % 16);
          at = part.split_offset + part.elements();
        }
      }
      EXPECT_EQ(end.near, shard.near_elements);
      EXPECT_EQ(end.far, shard.far_elements);
      most.near = std::max(most.near, end.near);
      most.far = std::max(most.far, end.far);
    }
    EXPECT_EQ(sizes.near, most.near);
    EXPECT_EQ(sizes.far, most.far);
    EXPECT_GT(sizes.near, 0);
  }
}

int64_t BytesOf(const v1::MemoryTable& table, const std::string& name) {
  return FindBuffer(table, name).size_bytes();
}

TEST(OffloadShare, WhatIsNearIsInMemory) {
  const v1::JobSpec job = Job();
  v1::Layout layout = LayoutOf(1, 2, 1);
  const v1::MemoryTable all = MemoryOfStage(job, layout, 0, 1);
  layout.set_offload_share(0.5);
  const v1::MemoryTable half = MemoryOfStage(job, layout, 0, 1);
  for (const std::string name : {"parameters", "adamw.m", "adamw.v"}) {
    EXPECT_EQ(BytesOf(all, name + kNearSuffix), 0) << name;
    EXPECT_TRUE(FindBuffer(half, name).on_disk()) << name;
    EXPECT_FALSE(FindBuffer(half, name + kNearSuffix).on_disk()) << name;
    EXPECT_GT(BytesOf(half, name + kNearSuffix), 0) << name;
    // The paddings between units are others.
    EXPECT_NEAR(static_cast<double>(BytesOf(half, name) + BytesOf(half, name + kNearSuffix)),
                static_cast<double>(BytesOf(all, name)), 1024)
        << name;
    EXPECT_GE(static_cast<double>(BytesOf(half, name)),
              0.5 * static_cast<double>(BytesOf(all, name)))
        << name;
  }
  // In fp32 the model reads the weights.
  const v1::MemoryTable full = MemoryOfStage(Job(v1::PRECISION_FP32), layout, 0, 1);
  EXPECT_FALSE(FindBuffer(full, "parameters").on_disk());
  EXPECT_EQ(BytesOf(full, "parameters.near"), 0);
  EXPECT_EQ(BytesOf(full, "adamw.m.near"), BytesOf(half, "adamw.m.near"));
  // With zero_stage 3 offload.parameters says where they are.
  v1::JobSpec gathered = job;
  gathered.mutable_offload()->set_parameters(v1::OFFLOAD_TIER_NVME);
  layout.set_zero_stage(3);
  const v1::MemoryTable third = MemoryOfStage(gathered, layout, 0, 1);
  EXPECT_TRUE(FindBuffer(third, "parameters").on_disk());
  EXPECT_EQ(BytesOf(third, "parameters.near"), 0);
  EXPECT_GT(BytesOf(third, "adamw.v.near"), 0);
}

TEST(OffloadShare, WithoutAnyTheMemoryIsThatOfAJobThatOffloadsNothing) {
  for (const v1::Precision precision : {v1::PRECISION_FP32, v1::PRECISION_BF16}) {
    v1::JobSpec job = Job(precision);
    v1::Layout layout = LayoutOf(2, 2, 2);
    layout.set_offload_share(kLeastShare);
    const v1::MemoryTable none = MemoryOfStage(job, layout, 1, 1);
    EXPECT_EQ(none.disk_bytes(), 0);
    // A share of what stays where it is counts as little.
    layout.set_offload_share(0.5);
    job.clear_offload();
    EXPECT_EQ(none.SerializeAsString(), MemoryOfStage(job, layout, 1, 1).SerializeAsString());
  }
}

TEST(OffloadShare, LessMemoryIsTakenAsTheShareRises) {
  for (const int zero_stage : {1, 3}) {
    v1::Layout layout = LayoutOf(2, 2, zero_stage);
    int64_t memory = 0;
    int64_t disk = 0;
    for (const double share : {1.0, 0.75, 0.5, 0.25, 0.0}) {
      layout.set_offload_share(share);
      const v1::MemoryTable table = MemoryOfStage(Job(), layout, 0, 1);
      if (memory > 0) {
        EXPECT_GE(table.total_bytes(), memory);
        EXPECT_LE(table.disk_bytes(), disk);
      }
      memory = table.total_bytes();
      disk = table.disk_bytes();
    }
  }
}

}  // namespace
}  // namespace tercio::plan
