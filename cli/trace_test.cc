// The bubble of an artificial step, and the content of the trace file.
#include "cli/trace.h"

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace tercio::cli {
namespace {

void Add(v1::RankTrace* trace, const char* name, double start, double seconds) {
  v1::TraceEvent* event = trace->add_events();
  event->set_name(name);
  event->set_start_seconds(start);
  event->set_seconds(seconds);
}

// Two stages, one micro-batch: the bubble of the formula, (2 - 1) / 1.
std::vector<v1::RankTrace> TwoStages() {
  std::vector<v1::RankTrace> traces(2);
  traces[1].set_rank(1);
  Add(&traces[0], "forward", 100, 1);
  Add(&traces[1], "wait activation", 100, 1);
  Add(&traces[1], "forward", 101, 1);
  Add(&traces[1], "backward", 102, 2);
  Add(&traces[0], "wait gradient", 101, 3);
  Add(&traces[0], "backward", 104, 2);
  Add(&traces[0], "optimizer", 106, 5);
  return traces;
}

TEST(Trace, BubbleIsTheIdleShareOfTheBusiestRank) {
  EXPECT_DOUBLE_EQ(MeasuredBubble(TwoStages()), 1.0);
  EXPECT_DOUBLE_EQ(MeasuredBubble({}), -1.0);
}

v1::Layout PipelineOf(int stages, int chunks, int micro_batches) {
  v1::Layout layout;
  layout.set_pipeline(stages);
  layout.set_virtual_pipeline(chunks);
  layout.set_micro_batches(micro_batches);
  layout.set_schedule(chunks > 1 ? v1::PIPELINE_SCHEDULE_INTERLEAVED : v1::PIPELINE_SCHEDULE_1F1B);
  return layout;
}

TEST(Trace, EqualStagesHaveTheBubbleOfTheFormula) {
  for (const int stages : {1, 2, 4}) {
    for (const int chunks : {1, 2, 3}) {
      for (const int micro_batches : {4, 8, 16}) {
        if (stages == 1 && chunks > 1) continue;
        EXPECT_NEAR(BubbleOfLayers(24, PipelineOf(stages, chunks, micro_batches)),
                    (stages - 1.0) / (chunks * micro_batches), 1e-9)
            << stages << " x " << chunks << ", " << micro_batches;
      }
    }
  }
}

TEST(Trace, UnequalStagesHaveABubbleOfTheirOwn) {
  const auto bubble = [](int first, int second, int micro_batches) {
    v1::Layout layout = PipelineOf(2, 1, micro_batches);
    layout.add_stage_layers(first);
    layout.add_stage_layers(second);
    return BubbleOfLayers(4, layout);
  };
  // One micro-batch goes through all layers, of which the busiest stage has 3.
  EXPECT_NEAR(bubble(3, 1, 1), 1.0 / 3, 1e-9);
  EXPECT_NEAR(bubble(1, 3, 1), 1.0 / 3, 1e-9);
  // A busy second stage waits for the first forward pass, and its step ends with the first stage's
  // last backward pass. A busy first one has another micro-batch while it waits.
  EXPECT_NEAR(bubble(1, 3, 8), (1.0 + 2.0) / (8 * 9), 1e-9);
  EXPECT_NEAR(bubble(3, 1, 8), 0, 1e-9);
  // Layers that do not divide are unequal without being named.
  EXPECT_GT(BubbleOfLayers(5, PipelineOf(2, 1, 8)), 0);
}

TEST(Trace, JsonHasEveryEventOfEveryRank) {
  const nlohmann::json json = nlohmann::json::parse(TraceJson(TwoStages(), v1::Plan()));
  int complete = 0;
  for (const auto& event : json["traceEvents"]) {
    if (event["ph"] != "X") continue;
    ++complete;
    EXPECT_GE(event["ts"], 0.0);
    if (event["name"] == "optimizer") {
      EXPECT_DOUBLE_EQ(event["ts"], 6e6);
      EXPECT_DOUBLE_EQ(event["dur"], 5e6);
    }
  }
  EXPECT_EQ(complete, 7);
}

}  // namespace
}  // namespace tercio::cli
