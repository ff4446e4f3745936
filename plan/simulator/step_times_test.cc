#include "plan/simulator/step_times.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"

namespace tercio::plan::simulator {
namespace {

StepShape Shape(int stages, int micro_batches, int tensor, int data) {
  StepShape shape;
  shape.schedule = {.kind = v1::PIPELINE_SCHEDULE_1F1B,
                    .stages = stages,
                    .micro_batches = micro_batches,
                    .chunks = 1};
  shape.pipeline.places.assign(static_cast<size_t>(stages), {.forward = 1, .backward = 2});
  shape.tensor = tensor;
  shape.data = data;
  shape.pipeline_seconds = cost::PipelineWalk(shape.schedule).Play(shape.pipeline).seconds;
  shape.rest_seconds = 1;
  return shape;
}

double MeanOf(const StepShape& shape, const Disturbances& disturbances, uint64_t seed = 1) {
  Draws draws(seed, 1);
  return StepSampler(shape, disturbances, seed).Draw(4000, &draws).mean();
}

TEST(StepTimes, SumsAndCountsOverTheEnd) {
  const StepTimes times({1, 2, 4});
  EXPECT_EQ(times.Sum(0, 3), 7);
  EXPECT_EQ(times.Sum(1, 4), 2 + 4 + 1 + 2);
  EXPECT_EQ(times.Sum(2, 0), 0);
  EXPECT_EQ(times.Sum(0, 300), 700);
  EXPECT_EQ(times.CountWithin(1, 2 + 4 + 1), 3);
  EXPECT_EQ(times.CountWithin(1, 2 + 4 + 0.5), 2);
  EXPECT_EQ(times.CountWithin(2, 3.9), 0);
  EXPECT_EQ(times.CountWithin(0, 700.5), 300);
}

TEST(StepTimes, UndisturbedStepsAreThePredictedOnes) {
  const StepShape shape = Shape(4, 16, 2, 8);
  EXPECT_DOUBLE_EQ(MeanOf(shape, {}), shape.seconds());
  EXPECT_TRUE((Disturbances{.slow_share = 0.1}).none());
}

TEST(StepTimes, JitterOnlySlows) {
  const StepShape shape = Shape(4, 32, 8, 64);
  double before = shape.seconds();
  for (const double jitter : {0.01, 0.03, 0.1, 0.3}) {
    const double mean = MeanOf(shape, {.pass_jitter = jitter});
    EXPECT_GT(mean, before) << jitter;
    before = mean;
  }
  before = shape.seconds();
  for (const double jitter : {0.01, 0.03, 0.1}) {
    const double mean = MeanOf(shape, {.step_jitter = jitter});
    EXPECT_GT(mean, before) << jitter;
    before = mean;
  }
  // More data ranks wait for more others.
  EXPECT_LT(MeanOf(Shape(4, 32, 8, 1), {.pass_jitter = 0.1}),
            MeanOf(Shape(4, 32, 8, 8), {.pass_jitter = 0.1}));
}

// Every pass of every rank drawn on its own, and every pipeline played.
double BruteForce(const StepShape& shape, double jitter, int steps, double* deviation) {
  const cost::PipelineWalk walk(shape.schedule);
  const double log = std::sqrt(std::log1p(jitter * jitter));
  Draws draws(99, 5);
  std::vector<double> seconds;
  for (int step = 0; step < steps; ++step) {
    double slowest = 0;
    for (int data = 0; data < shape.data; ++data) {
      const auto factor = [&](int) {
        double largest = 0;
        for (int tensor = 0; tensor < shape.tensor; ++tensor) {
          largest = std::max(largest, std::exp(log * draws.Normal() - log * log / 2));
        }
        return largest;
      };
      slowest = std::max(slowest, walk.Play(shape.pipeline, factor).seconds);
    }
    seconds.push_back(slowest + shape.rest_seconds);
  }
  double mean = 0;
  double squares = 0;
  for (const double each : seconds) mean += each / steps;
  for (const double each : seconds) squares += (each - mean) * (each - mean) / steps;
  *deviation = std::sqrt(squares);
  return mean;
}

TEST(StepTimes, TheMaximumOverDataRanksIsThatOfBruteForce) {
  for (const auto& [stages, tensor, data] : {std::tuple{1, 1, 32}, {4, 4, 16}, {3, 2, 64}}) {
    const StepShape shape = Shape(stages, 12, tensor, data);
    double brute_deviation = 0;
    const double brute = BruteForce(shape, 0.1, 300, &brute_deviation);
    Draws draws(1, 1);
    const StepSampler sampler(shape, {.pass_jitter = 0.1}, 1);
    const StepTimes times = sampler.Draw(4000, &draws);
    double squares = 0;
    for (int64_t i = 0; i < times.size(); ++i) {
      const double off = times.Sum(i, 1) - times.mean();
      squares += off * off / static_cast<double>(times.size());
    }
    EXPECT_NEAR(times.mean() / brute, 1, 0.005) << stages;
    // The excess over the undisturbed step agrees within a tenth.
    EXPECT_NEAR((times.mean() - shape.seconds()) / (brute - shape.seconds()), 1, 0.1) << stages;
    EXPECT_NEAR(std::sqrt(squares) / brute_deviation, 1, 0.25) << stages;
  }
}

TEST(StepTimes, OneSlowDeviceSetsThePaceOfAll) {
  const StepShape shape = Shape(4, 64, 8, 16);
  // All of them: every pass takes longer.
  EXPECT_NEAR(MeanOf(shape, {.slow_share = 1, .slow_by = 0.2}), 1.2 * shape.pipeline_seconds + 1,
              1e-6);
  // A few: the pipeline that has one runs at its stage's pace, and all wait for it.
  const double few = MeanOf(shape, {.slow_share = 0.02, .slow_by = 0.2});
  EXPECT_GT(few, 1.15 * shape.pipeline_seconds);
  EXPECT_LT(few, 1.2 * shape.pipeline_seconds + 1);
}

TEST(StepTimes, TheSameSeedGivesTheSameSteps) {
  const StepShape shape = Shape(4, 16, 2, 8);
  const Disturbances disturbances = {.pass_jitter = 0.05, .slow_share = 0.01, .slow_by = 0.1};
  EXPECT_EQ(MeanOf(shape, disturbances, 5), MeanOf(shape, disturbances, 5));
  EXPECT_NE(MeanOf(shape, disturbances, 5), MeanOf(shape, disturbances, 6));
}

TEST(StepTimes, LongPipelinesVaryAsTheirBeginningDoes) {
  const StepShape shape = Shape(4, 4 * 64, 1, 1);
  double deviation = 0;
  const double brute = BruteForce(shape, 0.1, 200, &deviation);
  EXPECT_NEAR(MeanOf(shape, {.pass_jitter = 0.1}) / brute, 1, 0.005);
}

}  // namespace
}  // namespace tercio::plan::simulator
