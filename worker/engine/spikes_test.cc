// What counts as a spike, over curves like those of real runs, and what the guard makes of it.
#include "worker/engine/spikes.h"

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/engine/step_guard.h"

namespace tercio::engine {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A loss that falls as 1 / sqrt(step) from 10 to 3, with noise, and a norm that does not.
struct Curve {
  explicit Curve(uint32_t seed) : random(seed) {}
  double Loss(int64_t step) {
    std::normal_distribution<double> noise(0, 0.03);
    return (3 + 7 / std::sqrt(static_cast<double>(step))) * std::exp(noise(random));
  }
  double Norm() {
    std::lognormal_distribution<double> norm(0, 0.3);
    return norm(random);
  }
  std::mt19937 random;
};

TEST(Spikes, AnOrdinaryCurveHasNone) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    Curve curve(seed);
    SpikeDetector spikes(0);
    for (int64_t step = 1; step <= 2000; ++step) {
      const double loss = curve.Loss(step);
      ASSERT_THAT(spikes.Judge(loss, curve.Norm()), IsEmpty()) << "seed " << seed << " " << step;
    }
  }
}

TEST(Spikes, NamesWhatIsFarAbove) {
  Curve curve(1);
  SpikeDetector spikes(0);
  for (int64_t step = 1000; step < 1128; ++step) spikes.Judge(curve.Loss(step), 1.0);
  EXPECT_THAT(spikes.Judge(7.5, 1), HasSubstr("loss 7.5, usually "));
  EXPECT_THAT(spikes.Judge(3.2, 12), HasSubstr("gradient norm 12, usually 1 to 1"));
  EXPECT_THAT(spikes.Judge(7.5, 12), HasSubstr("; gradient norm 12"));
  EXPECT_THAT(spikes.Judge(3.5, 9.5), IsEmpty());  // within the floors
  EXPECT_THAT(spikes.Judge(0.1, 0.01), IsEmpty());
}

TEST(Spikes, TheFirstStepsAreNone) {
  SpikeDetector spikes(0);
  for (int i = 0; i < SpikeDetector::kLeastSteps; ++i) {
    EXPECT_THAT(spikes.Judge(i % 2 == 0 ? 1 : 100, 1), IsEmpty());
  }
  SpikeDetector steady(0);
  for (int i = 0; i < SpikeDetector::kLeastSteps; ++i) steady.Judge(1, 1);
  EXPECT_THAT(steady.Judge(100, 1), HasSubstr("loss 100"));
}

TEST(Spikes, DoesNotGetUsedToThem) {
  SpikeDetector spikes(0);
  for (int i = 0; i < 64; ++i) spikes.Judge(3, 1);
  for (int i = 0; i < 1000; ++i) ASSERT_THAT(spikes.Judge(9, 1), HasSubstr("usually 3 to 3"));
  spikes.Forget();
  EXPECT_THAT(spikes.Judge(9, 1), IsEmpty());
}

TEST(Spikes, NeitherZeroLossNorZeroGradientsAlarm) {
  SpikeDetector spikes(0);
  for (int i = 0; i < 64; ++i) spikes.Judge(0, 0);
  EXPECT_THAT(spikes.Judge(0.1, 3), IsEmpty());
}

TEST(Spikes, TheThresholdIsInRobustDeviations) {
  // In logarithms a third of the values is 0.1 above the median, a third 0.1 below.
  for (const double threshold : {5.0, 10.0}) {
    SpikeDetector spikes(threshold);
    for (int i = 0; i < 129; ++i) spikes.Judge(std::exp(0.1 * (i % 3 - 1)), 1);
    const double limit = std::exp(threshold * 0.14826);
    EXPECT_THAT(spikes.Judge(limit * 0.99, 1), IsEmpty());
    EXPECT_THAT(spikes.Judge(limit * 1.01, 1), HasSubstr("loss"));
  }
}

TEST(Spikes, StateRoundTripAndDamage) {
  Curve curve(3);
  SpikeDetector spikes(0);
  for (int64_t step = 1; step <= 300; ++step) {
    SpikeDetector other(0);
    ASSERT_TRUE(other.Restore(spikes.state()).ok());
    EXPECT_EQ(other.state(), spikes.state());
    const double loss = step % 50 == 0 ? 100 : curve.Loss(step);
    const double norm = curve.Norm();
    EXPECT_EQ(other.Judge(loss, norm), spikes.Judge(loss, norm)) << step;
    EXPECT_EQ(other.state(), spikes.state());
  }
  const std::vector<float> good = spikes.state();
  for (const float bad : {-1.0f, 0.5f, 129.0f, std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> damaged = good;
    damaged[0] = bad;
    EXPECT_FALSE(spikes.Restore(damaged).ok()) << bad;
  }
  std::vector<float> damaged = good;
  damaged[7] = std::numeric_limits<float>::infinity();
  EXPECT_FALSE(spikes.Restore(damaged).ok());
  EXPECT_FALSE(spikes.Restore(absl::MakeConstSpan(good).subspan(1)).ok());
  EXPECT_EQ(spikes.state(), good);
}

v1::JobSpec Job(v1::OnSpike on_spike) {
  v1::JobSpec job;
  job.mutable_fault_tolerance()->set_on_spike(on_spike);
  return job;
}

// A guard that has seen an ordinary run.
StepGuard Ready(const v1::JobSpec& job) {
  StepGuard guard(job);
  for (int i = 0; i < 64; ++i) EXPECT_TRUE(guard.Judge(3, 1, "")->taken);
  return guard;
}

TEST(GuardOfSpikes, WhatBecomesOfAStep) {
  struct Case {
    v1::OnSpike policy;
    bool seen, taken, rolls_back;
  };
  for (const Case& c :
       {Case{v1::ON_SPIKE_UNSPECIFIED, false, true, false},
        Case{v1::ON_SPIKE_OFF, false, true, false}, Case{v1::ON_SPIKE_REPORT, true, true, false},
        Case{v1::ON_SPIKE_SKIP, true, false, false},
        Case{v1::ON_SPIKE_ROLLBACK, true, false, true}}) {
    StepGuard guard = Ready(Job(c.policy));
    const auto verdict = guard.Judge(9, 1, "step 65");
    ASSERT_TRUE(verdict.ok());
    EXPECT_EQ(!verdict->spike.empty(), c.seen) << c.policy;
    EXPECT_EQ(verdict->taken, c.taken) << c.policy;
    EXPECT_EQ(verdict->rolls_back, c.rolls_back) << c.policy;
    EXPECT_EQ(guard.TakenStep(66), c.policy == v1::ON_SPIKE_SKIP ? 65 : 66);
  }
}

TEST(GuardOfSpikes, SkippingEnds) {
  StepGuard guard = Ready(Job(v1::ON_SPIKE_SKIP));
  for (int i = 1; i < StepGuard::kMostSkipped; ++i) ASSERT_FALSE(guard.Judge(9, 1, "")->taken);
  ASSERT_TRUE(guard.Judge(3, 1, "")->taken);
  for (int i = 1; i < StepGuard::kMostSkipped; ++i) ASSERT_FALSE(guard.Judge(9, 1, "")->taken);
  const auto verdict = guard.Judge(9, 1, "step 300");
  EXPECT_EQ(verdict.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(verdict.status().message()), HasSubstr("step 300: loss 9, usually 3"));
}

TEST(GuardOfSpikes, AReportedLevelBecomesTheUsual) {
  StepGuard guard = Ready(Job(v1::ON_SPIKE_REPORT));
  int64_t reported = 0;
  for (int i = 0; i < 500; ++i) reported += guard.Judge(9, 1, "")->spike.empty() ? 0 : 1;
  EXPECT_EQ(reported, StepGuard::kNewLevel);
}

}  // namespace
}  // namespace tercio::engine
