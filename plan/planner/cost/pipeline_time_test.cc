#include "plan/planner/cost/pipeline_time.h"

#include <cmath>
#include <random>

#include "gtest/gtest.h"

namespace tercio::plan::cost {
namespace {

ScheduleShape Shape(int stages, int micro_batches, int chunks = 1) {
  return {.kind = chunks > 1 ? v1::PIPELINE_SCHEDULE_INTERLEAVED : v1::PIPELINE_SCHEDULE_1F1B,
          .stages = stages,
          .micro_batches = micro_batches,
          .chunks = chunks};
}

PipelineCost Equal(const ScheduleShape& shape, double forward, double backward) {
  PipelineCost cost;
  cost.places.assign(static_cast<size_t>(shape.stages * shape.chunks), {forward, backward});
  return cost;
}

// Narayanan et al. 2021, section 2.2: (p - 1) / (v m) of the ideal time.
TEST(PipelineTime, EqualStagesHaveTheKnownBubble) {
  for (const int chunks : {1, 2, 4}) {
    const ScheduleShape shape = Shape(4, 16, chunks);
    const double seconds = PipelineWalk(shape).Play(Equal(shape, 1, 2)).seconds;
    EXPECT_NEAR(seconds, chunks * 16 * 3 + 3 * 3, 1e-9) << chunks;
  }
  ScheduleShape gpipe = Shape(4, 16);
  gpipe.kind = v1::PIPELINE_SCHEDULE_GPIPE;
  EXPECT_NEAR(PipelineWalk(gpipe).Play(Equal(gpipe, 1, 2)).seconds, 16 * 3 + 3 * 3, 1e-9);
}

TEST(PipelineTime, TheSlowestStageSetsThePace) {
  const ScheduleShape shape = Shape(4, 64);
  PipelineCost cost = Equal(shape, 1, 2);
  cost.places[3] = {2, 4};
  // Sum of all stages once, and the slowest one for all other micro-batches.
  EXPECT_NEAR(PipelineWalk(shape).Play(cost).seconds, 3 * 3 + 6 + 63 * 6, 1e-9);
}

TEST(PipelineTime, MessagesDelayWhatWaitsForThem) {
  const ScheduleShape shape = Shape(4, 16);
  PipelineCost cost = Equal(shape, 1, 2);
  const double still = PipelineWalk(shape).Play(cost).seconds;
  cost.transfer = 0.1;
  const double beside = PipelineWalk(shape).Play(cost).seconds;
  cost.overlaps_transfers = false;
  const double blocking = PipelineWalk(shape).Play(cost).seconds;
  EXPECT_GE(beside, still + 2 * 3 * 0.1);
  EXPECT_GT(blocking, beside);
}

TEST(PipelineTime, WhatWasPlayedIsNotPlayedAgain) {
  PipelineWalks walks;
  const ScheduleShape shape = Shape(4, 8);
  PipelineCost cost = Equal(shape, 1, 2);
  const double seconds = walks.Play(shape, cost).seconds;
  EXPECT_EQ(walks.played(), 1);
  EXPECT_EQ(walks.Play(shape, cost).seconds, seconds);
  EXPECT_EQ(walks.played(), 1);
  // Any of its numbers makes it another one.
  cost.transfer = 0.1;
  EXPECT_GT(walks.Play(shape, cost).seconds, seconds);
  cost.places[2].backward = 3;
  walks.Play(shape, cost);
  cost.overlaps_transfers = false;
  walks.Play(shape, cost);
  walks.Play(Shape(4, 9), cost);
  EXPECT_EQ(walks.played(), 5);
}

// What is left out must be what the walk would have found.
TEST(PipelineTime, TheRestOfASteadyPipelineFollows) {
  std::mt19937 random(1);
  std::uniform_real_distribution<double> seconds(1, 1.5);
  for (const int chunks : {1, 3}) {
    for (const int stages : {2, 3, 8}) {
      const ScheduleShape shape = Shape(stages, stages * 16, chunks);
      PipelineCost cost = Equal(shape, 1, 2);
      for (const bool overlaps : {true, false}) {
        cost.overlaps_transfers = overlaps;
        cost.transfer = 0.05;
        PipelineWalks walks;
        EXPECT_NEAR(walks.Play(shape, cost).seconds, PipelineWalk(shape).Play(cost).seconds, 1e-6);
        for (PassSeconds& place : cost.places) place = {seconds(random), 2 * seconds(random)};
        const double whole = PipelineWalk(shape).Play(cost).seconds;
        EXPECT_NEAR(walks.Play(shape, cost).seconds, whole, 2e-3 * whole)
            << stages << " stages, " << chunks << " chunks";
      }
    }
  }
}

TEST(PipelineTime, ThousandsOfMicroBatchesCostNoMoreThanAFew) {
  const ScheduleShape shape = Shape(64, 64 * 200);
  PipelineWalks walks;
  EXPECT_NEAR(walks.Play(shape, Equal(shape, 1, 2)).seconds, 3.0 * (64 * 200 + 63), 1e-6);
}

}  // namespace
}  // namespace tercio::plan::cost
