#include "plan/planner/elastic.h"

#include "gtest/gtest.h"

namespace tercio::plan {
namespace {

Cluster WithMemory(int64_t bytes) {
  Cluster cluster;
  cluster.memory_bytes = bytes;
  return cluster;
}
const Cluster kMuch = WithMemory(int64_t{1} << 50);

v1::JobSpec Job(int tensor, int pipeline, int data) {
  v1::JobSpec job;
  v1::ModelSpec& model = *job.mutable_model();
  model.set_architecture(v1::ARCHITECTURE_GPT2);
  model.set_layers(4);
  model.set_hidden(32);
  model.set_heads(4);
  model.set_ffn_hidden(128);
  model.set_context(32);
  model.set_vocab_size(64);
  job.mutable_training()->set_steps(10);
  job.mutable_training()->set_global_batch(8);
  job.mutable_training()->set_precision(v1::PRECISION_FP32);
  job.mutable_parallelism()->set_tensor(tensor);
  job.mutable_parallelism()->set_pipeline(pipeline);
  job.mutable_parallelism()->set_data(data);
  job.mutable_parallelism()->set_schedule(v1::PIPELINE_SCHEDULE_1F1B);
  job.mutable_parallelism()->set_recompute(v1::RECOMPUTE_NONE);
  return job;
}

TEST(SmallerLayout, OnlyTheDataDegreeShrinksWhereItCan) {
  int ranks = 0;
  const auto layout = SmallerLayout(Job(2, 1, 4), 2, 7, kMuch, &ranks);
  ASSERT_TRUE(layout.ok()) << layout.status();
  // 6 ranks would be 3 replicas, which 8 sequences cannot be divided by.
  EXPECT_EQ(ranks, 4);
  EXPECT_EQ(layout->tensor(), 2);
  EXPECT_EQ(layout->pipeline(), 1);
  EXPECT_EQ(layout->data(), 2);
}

TEST(SmallerLayout, ThePlannerPicksWhereADegreeCannotStay) {
  int ranks = 0;
  const auto layout = SmallerLayout(Job(2, 2, 1), 2, 3, kMuch, &ranks);
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_EQ(ranks, layout->tensor() * layout->pipeline() * layout->data());
  EXPECT_GE(ranks, 2);
  EXPECT_LE(ranks, 3);
}

TEST(SmallerLayout, WhatIsChosenBesideDegreesStays) {
  // With the degrees, and where the planner picks others; the two keys exclude each other.
  for (const bool sequence_parallel : {true, false}) {
    for (const int tensor : {2, 4}) {
      v1::JobSpec job = Job(tensor, 1, tensor == 2 ? 4 : 1);
      v1::ParallelismSpec& wanted = *job.mutable_parallelism();
      wanted.set_sequence_parallel(sequence_parallel);
      wanted.set_tensor_overlap(sequence_parallel ? 1 : 3);
      wanted.set_recompute(v1::RECOMPUTE_FULL);
      wanted.set_schedule(v1::PIPELINE_SCHEDULE_GPIPE);
      int ranks = 0;
      const auto layout = SmallerLayout(job, 2, tensor == 2 ? 7 : 3, kMuch, &ranks);
      ASSERT_TRUE(layout.ok()) << layout.status();
      EXPECT_FALSE(layout->automatic());
      EXPECT_EQ(layout->sequence_parallel(), wanted.sequence_parallel());
      EXPECT_EQ(layout->tensor_overlap(), wanted.tensor_overlap());
      EXPECT_EQ(layout->recompute(), wanted.recompute());
      EXPECT_EQ(layout->schedule(), wanted.schedule());
    }
  }
}

// It was planned with two runs of layers for each stage, which other degrees do not have.
TEST(SmallerLayout, AnInterleavedScheduleNeedsItsDegrees) {
  v1::JobSpec job = Job(1, 2, 2);
  job.mutable_parallelism()->set_schedule(v1::PIPELINE_SCHEDULE_INTERLEAVED);
  job.mutable_parallelism()->set_virtual_pipeline(2);
  int ranks = 0;
  auto layout = SmallerLayout(job, 2, 3, kMuch, &ranks);
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_EQ(layout->schedule(), v1::PIPELINE_SCHEDULE_INTERLEAVED);
  layout = SmallerLayout(job, 1, 1, kMuch, &ranks);
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_EQ(layout->schedule(), v1::PIPELINE_SCHEDULE_1F1B);
  EXPECT_EQ(layout->virtual_pipeline(), 1);
}

TEST(SmallerLayout, LayersOfStagesNeedTheirStages) {
  v1::JobSpec job = Job(1, 3, 2);
  for (const int layers : {1, 2, 1}) job.mutable_parallelism()->add_stage_layers(layers);
  int ranks = 0;
  auto layout = SmallerLayout(job, 2, 5, kMuch, &ranks);
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_EQ(ranks, 3);
  EXPECT_EQ(layout->stage_layers_size(), 3);
  // With fewer ranks than stages the planner picks degrees, and equal stages.
  layout = SmallerLayout(job, 1, 2, kMuch, &ranks);
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_EQ(ranks, 2);
  EXPECT_TRUE(layout->stage_layers().empty());
}

TEST(SmallerLayout, MemoryCounts) {
  int ranks = 0;
  const auto layout = SmallerLayout(Job(2, 2, 2), 2, 7, WithMemory(1 << 10), &ranks);
  EXPECT_EQ(layout.status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace tercio::plan
