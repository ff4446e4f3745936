#include "plan/planner/cost/pipeline_time.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

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

// With a device for every rank the walk is the one without sharing.
TEST(PipelineTime, EnoughDevicesAreAsGoodAsOwnOnes) {
  std::mt19937 random(2);
  std::uniform_real_distribution<double> seconds(1, 1.5);
  for (const int chunks : {1, 2}) {
    const ScheduleShape shape = Shape(4, 16, chunks);
    PipelineCost cost = Equal(shape, 1, 2);
    for (PassSeconds& place : cost.places) place = {seconds(random), 2 * seconds(random)};
    cost.transfer = 0.05;
    const PipelineTime own = PipelineWalk(shape).Play(cost);
    cost.sharing = {.devices = 4, .ranks_of_stage = 1, .ranks_of_node = 4};
    const PipelineTime shared = PipelineWalk(shape).Play(cost);
    EXPECT_NEAR(shared.seconds, own.seconds, 1e-6);
    for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(shared.stage_ends[i], own.stage_ends[i], 1e-6);
  }
}

TEST(PipelineTime, SharedDevicesAreNeverIdleWhileTwoStagesHaveWork) {
  // Two stages on one device: all work, one after the other.
  const ScheduleShape two = Shape(2, 6);
  PipelineCost cost = Equal(two, 1, 2);
  cost.sharing = {.devices = 1, .ranks_of_stage = 1, .ranks_of_node = 2};
  EXPECT_NEAR(PipelineWalk(two).Play(cost).seconds, 2 * 6 * 3, 1e-9);
  // Four on two devices: between all work on both, and a bubble at the full speed of a device.
  const ScheduleShape four = Shape(4, 8);
  PipelineCost half = Equal(four, 1, 2);
  half.sharing = {.devices = 2, .ranks_of_stage = 1, .ranks_of_node = 4};
  const double seconds = PipelineWalk(four).Play(half).seconds;
  EXPECT_GT(seconds, 4 * 8 * 3 / 2.0);
  EXPECT_LT(seconds, 2 * (8 + 3) * 3);
  // Stages of two ranks, two of them on each node of two devices: nodes do not disturb each other.
  PipelineCost apart = Equal(four, 1, 2);
  apart.sharing = {.devices = 2, .ranks_of_stage = 2, .ranks_of_node = 4};
  const double both = PipelineWalk(four).Play(apart).seconds;
  EXPECT_GT(both, 8 * 3 * 2);
  EXPECT_LT(both, 2 * (8 + 3) * 3);
}

TEST(PipelineTime, PassesCanBeSeenAndScaled) {
  const ScheduleShape shape = Shape(3, 6, 2);
  PipelineCost cost = Equal(shape, 1, 2);
  cost.transfer = 0.25;
  cost.overlaps_transfers = false;
  const PipelineWalk walk(shape);
  const PipelineTime time = walk.Play(cost);
  std::vector<PassSpan> spans;
  EXPECT_EQ(walk.Play(cost, &spans).seconds, time.seconds);
  ASSERT_EQ(spans.size(), 3u * 6 * 2 * 2);
  std::vector<double> ends(3, 0);
  for (const PassSpan& span : spans) {
    double& end = ends[static_cast<size_t>(span.stage)];
    EXPECT_EQ(span.free, end);
    EXPECT_EQ(span.begin, std::max(span.free, span.ready));
    EXPECT_EQ(span.seconds, span.forward ? 1 : 2);
    end = span.begin + span.seconds + span.sending;
  }
  EXPECT_EQ(ends, time.stage_ends);
  EXPECT_EQ(walk.Play(cost, [](int) { return 1.0; }).seconds, time.seconds);
  cost.transfer = 0;
  const double still = walk.Play(cost).seconds;
  EXPECT_DOUBLE_EQ(walk.Play(cost, [](int) { return 2.0; }).seconds, 2 * still);
  EXPECT_GT(walk.Play(cost, [](int stage) { return stage == 1 ? 1.5 : 1.0; }).seconds, still);
}

TEST(PipelineTime, ThousandsOfMicroBatchesCostNoMoreThanAFew) {
  const ScheduleShape shape = Shape(64, 64 * 200);
  PipelineWalks walks;
  EXPECT_NEAR(walks.Play(shape, Equal(shape, 1, 2)).seconds, 3.0 * (64 * 200 + 63), 1e-6);
}

}  // namespace
}  // namespace tercio::plan::cost
