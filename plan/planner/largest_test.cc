#include "plan/planner/largest.h"

#include <algorithm>
#include <vector>

#include "gtest/gtest.h"
#include "plan/memory_map.h"
#include "plan/model_tensors.h"
#include "plan/plan_builder.h"
#include "plan/rank_layout.h"

namespace tercio::plan {
namespace {

constexpr int kThreads = 2;

v1::JobSpec Job(v1::Architecture architecture) {
  v1::JobSpec job;
  v1::ModelSpec* model = job.mutable_model();
  model->set_architecture(architecture);
  const bool llama = architecture == v1::ARCHITECTURE_LLAMA;
  model->set_layers(4);
  model->set_hidden(64);
  model->set_heads(8);
  model->set_kv_heads(llama ? 4 : 8);
  model->set_ffn_hidden(llama ? 176 : 256);
  model->set_untied_head(llama);
  model->set_bias(!llama);
  model->set_context(32);
  model->set_vocab_size(500);
  job.mutable_training()->set_steps(10);
  job.mutable_training()->set_global_batch(8);
  job.mutable_training()->set_lanes(8);
  job.mutable_training()->set_precision(v1::PRECISION_FP32);
  job.mutable_resources()->set_device(v1::DEVICE_KIND_CPU);
  return job;
}

v1::Layout LayoutOf(v1::JobSpec* job, int tensor, int pipeline, int data) {
  job->mutable_parallelism()->set_tensor(tensor);
  job->mutable_parallelism()->set_pipeline(pipeline);
  job->mutable_parallelism()->set_data(data);
  job->mutable_parallelism()->set_virtual_pipeline(1);
  job->mutable_parallelism()->set_schedule(v1::PIPELINE_SCHEDULE_1F1B);
  job->mutable_parallelism()->set_recompute(v1::RECOMPUTE_NONE);
  job->mutable_resources()->set_ranks(tensor * pipeline * data);
  const auto layout = plan::LayoutOfJob(*job);
  EXPECT_TRUE(layout.ok()) << layout.status();
  return *layout;
}

int64_t MemoryOf(const v1::JobSpec& job, const v1::Layout& layout) {
  int64_t most = 0;
  for (int stage = 0; stage < layout.pipeline(); ++stage) {
    most = std::max(most, MemoryOfStage(job, layout, stage, kThreads).total_bytes());
  }
  return most;
}

TEST(Largest, FitsAndTheNextDoesNot) {
  const std::vector<std::vector<int>> layouts = {{1, 1, 1}, {2, 1, 1}, {1, 4, 1}, {2, 2, 2}};
  for (const v1::Architecture architecture :
       {v1::ARCHITECTURE_GPT2, v1::ARCHITECTURE_LLAMA, v1::ARCHITECTURE_BERT}) {
    for (const std::vector<int>& degrees : layouts) {
      v1::JobSpec job = Job(architecture);
      const v1::Layout layout = LayoutOf(&job, degrees[0], degrees[1], degrees[2]);
      for (const int64_t bytes : {int64_t{3} << 20, int64_t{40} << 20, int64_t{2} << 30}) {
        const auto largest = LargestModelThatFits(job, layout, kThreads, bytes);
        ASSERT_TRUE(largest.has_value());
        EXPECT_LE(largest->memory_bytes, bytes);
        // The widths of the family are multiples of the first one's.
        const int64_t step = FamilyMember(job, layout, 1)->model().hidden();
        const auto member = FamilyMember(job, layout, largest->hidden / step);
        ASSERT_TRUE(member.has_value());
        EXPECT_EQ(member->model().layers(), largest->layers);
        EXPECT_EQ(MemoryOf(*member, layout), largest->memory_bytes);
        EXPECT_EQ(ParameterCount(member->model()), largest->parameters);
        const auto next = FamilyMember(job, layout, largest->hidden / step + 1);
        ASSERT_TRUE(next.has_value());
        EXPECT_GT(MemoryOf(*next, layout), bytes);
        // Both are models that the layout can cut.
        EXPECT_TRUE(CheckLayout(*member, layout, WorldSize(layout)).ok());
        EXPECT_TRUE(CheckLayout(*next, layout, WorldSize(layout)).ok());
      }
    }
  }
}

TEST(Largest, LayersOfStagesAreThoseOfOneModel) {
  v1::JobSpec job = Job(v1::ARCHITECTURE_GPT2);
  const v1::Layout equal = LayoutOf(&job, 1, 2, 1);
  for (const int layers : {1, 3}) job.mutable_parallelism()->add_stage_layers(layers);
  const v1::Layout unequal = LayoutOf(&job, 1, 2, 1);
  EXPECT_EQ(unequal.stage_layers_size(), 2);
  constexpr int64_t kBytes = int64_t{40} << 20;
  const auto largest = LargestModelThatFits(job, unequal, kThreads, kBytes);
  ASSERT_TRUE(largest.has_value());
  EXPECT_EQ(largest->memory_bytes,
            LargestModelThatFits(job, equal, kThreads, kBytes)->memory_bytes);
}

TEST(Largest, MembersKeepTheirProportions) {
  v1::JobSpec job = Job(v1::ARCHITECTURE_LLAMA);
  const v1::Layout layout = LayoutOf(&job, 2, 2, 1);
  // The job itself: 8 heads in steps of two key heads with two queries each.
  const auto itself = FamilyMember(job, layout, 2);
  ASSERT_TRUE(itself.has_value());
  EXPECT_EQ(itself->SerializeAsString(), job.SerializeAsString());
  const auto tenfold = FamilyMember(job, layout, 20);
  ASSERT_TRUE(tenfold.has_value());
  EXPECT_EQ(tenfold->model().hidden(), 640);
  EXPECT_EQ(tenfold->model().heads(), 80);
  EXPECT_EQ(tenfold->model().kv_heads(), 40);
  EXPECT_EQ(tenfold->model().layers(), 40);
  EXPECT_EQ(tenfold->model().ffn_hidden(), 1760);
  EXPECT_EQ(tenfold->model().vocab_size(), 500);
  EXPECT_EQ(tenfold->model().context(), 32);
  // Layers are rounded to what two stages can share.
  EXPECT_EQ(FamilyMember(job, layout, 1)->model().layers(), 2);
  EXPECT_EQ(FamilyMember(job, layout, 3)->model().layers() % 2, 0);
}

TEST(Largest, MoreRanksHoldMore) {
  v1::JobSpec job = Job(v1::ARCHITECTURE_GPT2);
  const int64_t bytes = int64_t{100} << 20;
  const v1::Layout alone = LayoutOf(&job, 1, 1, 1);
  const auto one = LargestModelThatFits(job, alone, kThreads, bytes);
  const v1::Layout copies = LayoutOf(&job, 1, 1, 2);
  const auto data = LargestModelThatFits(job, copies, kThreads, bytes);
  const v1::Layout cut = LayoutOf(&job, 2, 2, 1);
  const auto tensor = LargestModelThatFits(job, cut, kThreads, bytes);
  ASSERT_TRUE(one.has_value() && data.has_value() && tensor.has_value());
  // Copies of a model need as much memory as one, apart from activations; parts do not.
  EXPECT_GT(tensor->parameters, 2 * one->parameters);
  EXPECT_LT(data->parameters, 2 * one->parameters);
}

TEST(Largest, NothingFitsAndEverythingFits) {
  v1::JobSpec job = Job(v1::ARCHITECTURE_GPT2);
  const v1::Layout layout = LayoutOf(&job, 1, 1, 1);
  EXPECT_FALSE(LargestModelThatFits(job, layout, kThreads, 1000).has_value());
  // The limits of a job end the family, however much memory there is.
  const auto largest = LargestModelThatFits(job, layout, kThreads, int64_t{1} << 62);
  ASSERT_TRUE(largest.has_value());
  EXPECT_GT(largest->hidden, 10'000);
}

}  // namespace
}  // namespace tercio::plan
