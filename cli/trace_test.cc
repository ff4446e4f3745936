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
