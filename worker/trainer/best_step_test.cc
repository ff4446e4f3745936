#include "worker/trainer/best_step.h"

#include <limits>

#include "gtest/gtest.h"

namespace tercio::trainer {
namespace {

v1::StepRecord Evaluated(int64_t step, double accuracy) {
  v1::StepRecord record;
  record.set_step(step);
  record.set_validation_accuracy(accuracy);
  return record;
}

TEST(BestStep, AStepCountsOnceItIsCommitted) {
  BestStep best(v1::QUALITY_METRIC_ACCURACY, {});
  EXPECT_EQ(best.step(), 0);
  EXPECT_TRUE(best.Beats(Evaluated(10, 0.5)));
  best.SaveBegins(Evaluated(10, 0.5));
  EXPECT_EQ(best.step(), 0);
  EXPECT_EQ(best.candidate(), 10);
  best.Settle(true);
  EXPECT_EQ(best.step(), 10);
  EXPECT_FALSE(best.has_candidate());
  EXPECT_FALSE(best.Beats(Evaluated(20, 0.5)));
  EXPECT_TRUE(best.Beats(Evaluated(20, 0.6)));
}

TEST(BestStep, AStepThatWasNotCommittedLeavesItsPlaceToWorseOnes) {
  v1::BestEvaluation known;
  known.set_step(10);
  known.set_value(0.5);
  BestStep best(v1::QUALITY_METRIC_ACCURACY, known);
  best.SaveBegins(Evaluated(20, 0.9));
  // Better than the one that is committed: what has become of the candidate decides.
  EXPECT_TRUE(best.Beats(Evaluated(30, 0.7)));
  EXPECT_FALSE(best.BeatsCandidate(Evaluated(30, 0.7)));
  EXPECT_TRUE(best.BeatsCandidate(Evaluated(30, 0.95)));
  best.Settle(false);
  EXPECT_EQ(best.step(), 10);
  EXPECT_TRUE(best.Beats(Evaluated(30, 0.7)));
}

TEST(BestStep, OnlyEvaluatedStepsOfAJobThatKeepsOneCount) {
  BestStep none(v1::QUALITY_METRIC_UNSPECIFIED, {});
  EXPECT_FALSE(none.Beats(Evaluated(10, 0.5)));
  BestStep best(v1::QUALITY_METRIC_LOSS, {});
  EXPECT_FALSE(best.Beats(Evaluated(10, 0.5)));
  v1::StepRecord step = Evaluated(10, 0.5);
  step.set_validation_loss(std::numeric_limits<double>::quiet_NaN());
  EXPECT_FALSE(best.Beats(step));
  step.set_validation_loss(2);
  EXPECT_TRUE(best.Beats(step));
  BestStep later(static_cast<v1::QualityMetric>(77), {});
  EXPECT_FALSE(later.Beats(step));
}

}  // namespace
}  // namespace tercio::trainer
