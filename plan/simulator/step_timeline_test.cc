#include "plan/simulator/step_timeline.h"

#include <map>
#include <tuple>

#include "gtest/gtest.h"
#include "plan/planner/cost/hardware.h"
#include "plan/planner/cost/recipe.h"
#include "proto/tercio/v1/job.pb.h"
#include "proto/tercio/v1/plan.pb.h"

namespace tercio::plan::simulator {
namespace {

v1::JobSpec Gpt() {
  v1::JobSpec job;
  v1::ModelSpec* model = job.mutable_model();
  model->set_architecture(v1::ARCHITECTURE_GPT2);
  model->set_layers(24);
  model->set_hidden(4096);
  model->set_heads(32);
  model->set_kv_heads(32);
  model->set_ffn_hidden(4 * 4096);
  model->set_context(2048);
  model->set_vocab_size(51200);
  model->set_bias(true);
  job.mutable_training()->set_precision(v1::PRECISION_BF16);
  return job;
}

v1::Layout Layout(int pipeline, int chunks, int micro_batches) {
  v1::Layout layout;
  layout.set_tensor(2);
  layout.set_pipeline(pipeline);
  layout.set_virtual_pipeline(chunks);
  layout.set_context_parallel(1);
  layout.set_data(4);
  layout.set_micro_batch(1);
  layout.set_micro_batches(micro_batches);
  layout.set_schedule(chunks > 1 ? v1::PIPELINE_SCHEDULE_INTERLEAVED : v1::PIPELINE_SCHEDULE_1F1B);
  layout.set_recompute(v1::RECOMPUTE_FULL);
  layout.set_zero_stage(1);
  return layout;
}

cost::StepTiming Timing(const v1::Layout& layout, const char* recipe = "tercio") {
  const int devices = layout.tensor() * layout.pipeline() * layout.data();
  const cost::ClusterModel cluster =
      cost::MakeCluster(*cost::AcceleratorOf("A100-80"), 8, std::max(1, devices / 8), 8, 25e9);
  const v1::JobSpec job = Gpt();
  cost::PipelineWalks walks;
  return cost::TimingOfStep(
      {.job = job, .layout = layout, .cluster = cluster, .recipe = *cost::FindRecipe(recipe)},
      &walks);
}

double EndOf(const TimelineSpan& span) { return span.begin + span.seconds; }

class StepTimelineTest : public ::testing::TestWithParam<std::tuple<int, int, int>> {};

TEST_P(StepTimelineTest, EveryPassOnceInOrderAndAsLongAsPredicted) {
  const auto [stages, chunks, micro_batches] = GetParam();
  const cost::StepTiming timing = Timing(Layout(stages, chunks, micro_batches));
  const StepTimeline timeline = TimelineOfStep(timing);
  ASSERT_EQ(timeline.stages.size(), static_cast<size_t>(stages));
  for (size_t stage = 0; stage < timeline.stages.size(); ++stage) {
    std::map<std::tuple<SpanKind, int, int>, int> seen;
    double before = 0;
    for (const TimelineSpan& span : timeline.stages[stage]) {
      EXPECT_GE(span.begin, before - 1e-9);
      EXPECT_GT(span.seconds, 0);
      before = EndOf(span);
      ++seen[{span.kind, span.micro_batch, span.chunk}];
    }
    EXPECT_NEAR(before, timeline.seconds, 1e-9);
    for (int micro_batch = 0; micro_batch < micro_batches; ++micro_batch) {
      for (int chunk = 0; chunk < chunks; ++chunk) {
        for (const SpanKind kind :
             {SpanKind::kForward, SpanKind::kRecompute, SpanKind::kBackward}) {
          EXPECT_EQ((seen[{kind, micro_batch, chunk}]), 1) << stage;
        }
      }
    }
    EXPECT_EQ((seen[{SpanKind::kOptimizer, -1, 0}]), 1);
    EXPECT_EQ((seen[{SpanKind::kOther, -1, 0}]), 1);
  }
  // Short pipelines are predicted from all of their passes.
  const bool is_whole = micro_batches / stages <= 5;
  EXPECT_NEAR(timeline.seconds / timing.cost.seconds, 1, is_whole ? 1e-9 : 2e-3);
}

INSTANTIATE_TEST_SUITE_P(Layouts, StepTimelineTest,
                         ::testing::Values(std::tuple{1, 1, 4}, std::tuple{4, 1, 8},
                                           std::tuple{4, 1, 96}, std::tuple{4, 3, 16},
                                           std::tuple{8, 3, 64}));

TEST(StepTimeline, AForwardPassFollowsThatOfTheStageBefore) {
  const cost::StepTiming timing = Timing(Layout(4, 1, 8));
  const StepTimeline timeline = TimelineOfStep(timing);
  const auto find = [&](size_t stage, SpanKind kind, int micro_batch) {
    for (const TimelineSpan& span : timeline.stages[stage]) {
      if (span.kind == kind && span.micro_batch == micro_batch) return span;
    }
    return TimelineSpan();
  };
  for (size_t stage = 1; stage < 4; ++stage) {
    for (int micro_batch = 0; micro_batch < 8; ++micro_batch) {
      const TimelineSpan forward = find(stage, SpanKind::kForward, micro_batch);
      EXPECT_GE(forward.begin, EndOf(find(stage - 1, SpanKind::kForward, micro_batch)));
      EXPECT_GE(find(stage - 1, SpanKind::kRecompute, micro_batch).begin,
                EndOf(find(stage, SpanKind::kBackward, micro_batch)));
    }
    // Until its first micro-batch comes, a stage waits.
    const TimelineSpan first = timeline.stages[stage].front();
    EXPECT_EQ(first.kind, SpanKind::kWaitActivation);
    EXPECT_EQ(first.begin, 0);
    EXPECT_EQ(EndOf(first), find(stage, SpanKind::kForward, 0).begin);
  }
}

TEST(StepTimeline, RecipesThatWaitForMessagesOrDeferTheHeadShowIt) {
  for (const char* recipe : {"megatron2021", "nemo", "deepspeed-zero3", "megatron-core"}) {
    const cost::StepTiming timing = Timing(Layout(4, 1, 8), recipe);
    const StepTimeline timeline = TimelineOfStep(timing);
    EXPECT_NEAR(timeline.seconds / timing.cost.seconds, 1, 1e-9) << recipe;
    bool sends = false;
    bool defers = false;
    for (const std::vector<TimelineSpan>& stage : timeline.stages) {
      double before = 0;
      for (const TimelineSpan& span : stage) {
        EXPECT_GE(span.begin, before - 1e-9) << recipe;
        before = EndOf(span);
        sends = sends || span.kind == SpanKind::kSendActivation;
        defers = defers || span.kind == SpanKind::kHeadGradient;
      }
    }
    EXPECT_EQ(sends, !timing.pipeline.overlaps_transfers) << recipe;
    EXPECT_EQ(defers, timing.head_gradient > 0) << recipe;
  }
}

}  // namespace
}  // namespace tercio::plan::simulator
