#include "cli/commands/timeline_figure.h"

#include <map>
#include <set>

#include "cli/trace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace tercio::cli {
namespace {

using plan::simulator::SpanKind;
using plan::simulator::StepTimeline;
using ::testing::HasSubstr;

// Two stages with passes of 1 s forward, 1 s again and 2 s backward.
StepTimeline TwoStages() {
  StepTimeline timeline;
  timeline.shape.stages = 2;
  timeline.shape.micro_batches = 1;
  timeline.stages = {{{SpanKind::kForward, 0, 0, 0, 1},
                      {SpanKind::kWaitGradient, 0, 0, 1, 4},
                      {SpanKind::kRecompute, 0, 0, 5, 1},
                      {SpanKind::kBackward, 0, 0, 6, 2},
                      {SpanKind::kExchange, -1, 0, 8, 1},
                      {SpanKind::kOptimizer, -1, 0, 9, 1},
                      {SpanKind::kOther, -1, 0, 10, 0.5}},
                     {{SpanKind::kWaitActivation, 0, 0, 0, 1},
                      {SpanKind::kForward, 0, 0, 1, 1},
                      {SpanKind::kRecompute, 0, 0, 2, 1},
                      {SpanKind::kBackward, 0, 0, 3, 2},
                      {SpanKind::kOptimizer, -1, 0, 9, 1},
                      {SpanKind::kOther, -1, 0, 10, 0.5}}};
  timeline.seconds = 10.5;
  return timeline;
}

v1::Layout Layout() {
  v1::Layout layout;
  layout.set_tensor(2);
  layout.set_pipeline(2);
  layout.set_data(3);
  layout.set_context_parallel(1);
  layout.set_micro_batch(4);
  layout.set_micro_batches(1);
  return layout;
}

TEST(TimelineFigure, ARowForEachStageWithAllButItsWaits) {
  const plot::Timeline figure = TimelineFigure(TwoStages(), Layout(), "12 x A100-80");
  ASSERT_EQ(figure.rows.size(), 2u);
  EXPECT_EQ(figure.rows[0].boxes.size(), 6u);
  EXPECT_EQ(figure.rows[1].boxes.size(), 5u);
  EXPECT_EQ(figure.seconds, 10.5);
  EXPECT_EQ(figure.rows[0].boxes[0].text, "0");
  EXPECT_EQ(figure.rows[0].boxes[1].text, "");
  EXPECT_THAT(figure.rows[1].boxes[2].title, HasSubstr("stage 1, micro-batch 0: backward, 2 s"));
  EXPECT_THAT(figure.title, HasSubstr("tensor 2 x pipeline 2 x data 3, 1 micro-batches of 4"));
  EXPECT_THAT(figure.unit, HasSubstr("12 x A100-80"));
}

TEST(TimelineFigure, TheTraceHasTheTrainersNames) {
  const nlohmann::json json = nlohmann::json::parse(
      TraceJson(TimelineTraces(TwoStages(), Layout()), PlacesOfRanks(Layout())));
  std::map<int, std::multiset<std::string>> names;
  std::set<std::string> ranks;
  for (const auto& event : json["traceEvents"]) {
    if (event["name"] == "process_name") ranks.insert(event["args"]["name"].get<std::string>());
    if (event["ph"] != "X") continue;
    names[event["pid"].get<int>()].insert(event["name"].get<std::string>());
    if (event["name"] == "backward" && event["pid"] == 0) {
      // Recomputation is a part of the pass, as it is where it is measured.
      EXPECT_DOUBLE_EQ(event["ts"], 5e6);
      EXPECT_DOUBLE_EQ(event["dur"], 3e6);
    }
  }
  EXPECT_EQ(ranks, (std::set<std::string>{"rank 0 (stage 0, data 0, tensor 0)",
                                          "rank 6 (stage 1, data 0, tensor 0)"}));
  EXPECT_EQ(names[0], (std::multiset<std::string>{"backward", "finish reduction", "forward",
                                                  "optimizer", "wait gradient"}));
  EXPECT_EQ(names[6],
            (std::multiset<std::string>{"backward", "forward", "optimizer", "wait activation"}));
}

TEST(TimelineFigure, ItsBubbleIsThatOfTheTrace) {
  // From the first forward to the last backward pass 8 s, of which a stage works 4.
  EXPECT_DOUBLE_EQ(MeasuredBubble(TimelineTraces(TwoStages(), Layout())), 1.0);
}

}  // namespace
}  // namespace tercio::cli
