#include "plan/simulator/checkpoint_interval.h"

#include <cmath>

#include "gtest/gtest.h"

namespace tercio::plan::simulator {
namespace {

constexpr double kMinute = 60;
constexpr double kHour = 3600;

// Daly 2006, figures 3 to 5: restarts of 10 minutes, dumps of 5.
TEST(CheckpointInterval, DalysOwnExamples) {
  const auto minutes = [](double mean_to_failure) {
    return DalyInterval({.pause = 5 * kMinute,
                         .restart = 10 * kMinute,
                         .mean_to_failure = mean_to_failure}) /
           kMinute;
  };
  EXPECT_NEAR(minutes(24 * kHour), 117, 0.5);
  EXPECT_NEAR(minutes(6 * kHour), 57, 0.5);
  EXPECT_NEAR(minutes(15 * kMinute), 9.1, 0.05);
  // A dump that takes longer than twice the time between failures.
  EXPECT_EQ(minutes(2 * kMinute), 2);
}

TEST(CheckpointInterval, YoungsFormula) {
  EXPECT_DOUBLE_EQ(YoungInterval({.pause = 50, .mean_to_failure = 10000}), 1000);
}

TEST(CheckpointInterval, LeastWasteIsDalysOptimum) {
  for (const double pause : {1.0, 30.0, 300.0, 1800.0}) {
    for (const double mean : {2 * kHour, 24 * kHour, 500 * kHour}) {
      const SaveCosts costs = {.pause = pause, .restart = 600, .mean_to_failure = mean};
      const double least = LeastWasteInterval(costs);
      EXPECT_NEAR(DalyInterval(costs) / least, 1, 0.01) << pause << " " << mean;
      const double waste = ExpectedWaste(costs, least);
      EXPECT_LE(waste, ExpectedWaste(costs, 0.9 * least));
      EXPECT_LE(waste, ExpectedWaste(costs, 1.1 * least));
    }
  }
}

TEST(CheckpointInterval, SmallRatesAgreeWithTheFirstOrder) {
  const SaveCosts costs = {
      .pause = 10, .written = 60, .restart = 300, .mean_to_failure = 200 * kHour};
  for (const double interval : {600.0, 3600.0, 10000.0}) {
    const double first = FirstOrderWaste(costs, interval);
    EXPECT_NEAR(ExpectedWaste(costs, interval) / first, 1, 0.02) << interval;
  }
  // Nothing comes through when a segment takes far longer than the time between failures.
  EXPECT_EQ(ExpectedWaste({.pause = 10, .mean_to_failure = 60}, 1e6), 1);
}

TEST(CheckpointInterval, NoIntervalIsShorterThanTheWriting) {
  const SaveCosts costs = {.pause = 1, .written = 901, .restart = 60, .mean_to_failure = 2 * kHour};
  EXPECT_LT(YoungInterval(costs), 200);
  EXPECT_DOUBLE_EQ(LeastWasteInterval(costs), 900);
  EXPECT_DOUBLE_EQ(ExpectedWaste(costs, 100), ExpectedWaste(costs, 900));
}

}  // namespace
}  // namespace tercio::plan::simulator
