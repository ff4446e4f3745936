#include "plan/quality.h"

#include <limits>

#include "gtest/gtest.h"

namespace tercio::plan {
namespace {

v1::Confusion Table(int classes, const std::vector<int64_t>& counts) {
  v1::Confusion confusion;
  confusion.set_classes(classes);
  for (const int64_t count : counts) confusion.add_counts(count);
  return confusion;
}

// Figures of sklearn.metrics.classification_report for these tables.
TEST(QualityTest, TwoClassesGiveTheScoresOfTheSecond) {
  const Quality quality = QualityOf(Table(2, {50, 10, 5, 35}));
  EXPECT_DOUBLE_EQ(quality.accuracy, 0.85);
  EXPECT_DOUBLE_EQ(quality.overall.precision, 35.0 / 45);
  EXPECT_DOUBLE_EQ(quality.overall.recall, 35.0 / 40);
  EXPECT_DOUBLE_EQ(quality.overall.f1, 70.0 / 85);
  EXPECT_EQ(quality.overall.support, 40);
  EXPECT_DOUBLE_EQ(quality.macro.recall, (50.0 / 60 + 35.0 / 40) / 2);
  EXPECT_DOUBLE_EQ(quality.weighted.recall, 0.85);
  EXPECT_EQ(quality.weighted.support, 100);
}

TEST(QualityTest, MoreClassesGiveTheMeanOverThem) {
  // The third class is never predicted, the fourth never occurs.
  const Quality quality = QualityOf(Table(4, {8, 2, 0, 0, 1, 8, 0, 1, 3, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_DOUBLE_EQ(quality.accuracy, 16.0 / 23);
  EXPECT_DOUBLE_EQ(quality.classes[2].precision, 0);
  EXPECT_DOUBLE_EQ(quality.classes[2].recall, 0);
  EXPECT_DOUBLE_EQ(quality.classes[3].recall, 0);
  EXPECT_EQ(quality.classes[3].support, 0);
  EXPECT_DOUBLE_EQ(quality.overall.precision, (8.0 / 12 + 8.0 / 10) / 4);
  EXPECT_DOUBLE_EQ(quality.weighted.recall, 10.0 / 23 * 0.8 + 10.0 / 23 * 0.8);
}

TEST(QualityTest, CountsExamples) {
  v1::Confusion confusion = EmptyConfusion(3);
  EXPECT_TRUE(IsConfusion(confusion));
  Count(2, 0, &confusion);
  Count(2, 0, &confusion);
  Count(1, 1, &confusion);
  EXPECT_EQ(confusion.counts(6), 2);
  EXPECT_EQ(confusion.counts(4), 1);
  EXPECT_DOUBLE_EQ(QualityOf(confusion).accuracy, 1.0 / 3);
}

TEST(QualityTest, TablesOfOtherShapesAreRefused) {
  EXPECT_FALSE(IsConfusion(v1::Confusion()));
  EXPECT_FALSE(IsConfusion(Table(1, {3})));
  EXPECT_FALSE(IsConfusion(Table(2, {1, 2, 3})));
  EXPECT_FALSE(IsConfusion(Table(2, {1, 2, 3, -1})));
  EXPECT_FALSE(IsConfusion(Table(1 << 30, {1, 2, 3, 4})));
}

TEST(QualityTest, ValuesOfMetrics) {
  v1::Evaluation evaluation;
  evaluation.set_loss(0.5);
  EXPECT_DOUBLE_EQ(ValueOf(v1::QUALITY_METRIC_LOSS, evaluation), 0.5);
  *evaluation.mutable_confusion() = Table(2, {50, 10, 5, 35});
  EXPECT_DOUBLE_EQ(ValueOf(v1::QUALITY_METRIC_ACCURACY, evaluation), 0.85);
  EXPECT_DOUBLE_EQ(ValueOf(v1::QUALITY_METRIC_PRECISION, evaluation), 35.0 / 45);
  EXPECT_DOUBLE_EQ(ValueOf(v1::QUALITY_METRIC_RECALL, evaluation), 35.0 / 40);
  EXPECT_DOUBLE_EQ(ValueOf(v1::QUALITY_METRIC_F1, evaluation), 70.0 / 85);
}

TEST(QualityTest, LowerLossesAndHigherScoresAreBetter) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(IsBetter(v1::QUALITY_METRIC_LOSS, 1, 2));
  EXPECT_FALSE(IsBetter(v1::QUALITY_METRIC_LOSS, 2, 1));
  EXPECT_TRUE(IsBetter(v1::QUALITY_METRIC_F1, 2, 1));
  EXPECT_FALSE(IsBetter(v1::QUALITY_METRIC_F1, 1, 1));
  EXPECT_FALSE(IsBetter(v1::QUALITY_METRIC_LOSS, kNan, 1));
  EXPECT_TRUE(IsBetter(v1::QUALITY_METRIC_LOSS, 1, kNan));
}

TEST(QualityTest, TheFirstNumberBeatsNothingAndNanNever) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(BeatsBest(v1::QUALITY_METRIC_F1, 0, nullptr));
  EXPECT_FALSE(BeatsBest(v1::QUALITY_METRIC_LOSS, kNan, nullptr));
  v1::BestEvaluation best;
  best.set_value(0.5);
  EXPECT_TRUE(BeatsBest(v1::QUALITY_METRIC_F1, 0.6, &best));
  EXPECT_FALSE(BeatsBest(v1::QUALITY_METRIC_F1, 0.5, &best));
  EXPECT_TRUE(BeatsBest(v1::QUALITY_METRIC_LOSS, 0.4, &best));
}

TEST(QualityTest, MetricsFollowFromTheModel) {
  v1::ModelSpec model;
  EXPECT_EQ(MetricsOf(model), (std::vector<v1::QualityMetric>{v1::QUALITY_METRIC_LOSS}));
  model.set_labels(2);
  EXPECT_EQ(MetricsOf(model).size(), 5u);
  EXPECT_TRUE(ScoresClasses(model));
  model.set_labels(kMostScoredClasses + 1);
  EXPECT_EQ(MetricsOf(model).size(), 1u);
  EXPECT_FALSE(ScoresClasses(model));
}

TEST(QualityTest, RecordsHoldWhatIsAskedFor) {
  v1::Evaluation evaluation;
  evaluation.set_loss(0.5);
  *evaluation.mutable_confusion() = Table(2, {50, 10, 5, 35});
  v1::StepRecord all;
  AddValidation(evaluation, {}, &all);
  for (const v1::QualityMetric metric :
       {v1::QUALITY_METRIC_LOSS, v1::QUALITY_METRIC_ACCURACY, v1::QUALITY_METRIC_PRECISION,
        v1::QUALITY_METRIC_RECALL, v1::QUALITY_METRIC_F1}) {
    EXPECT_EQ(ValueOf(metric, all), ValueOf(metric, evaluation)) << metric;
  }
  v1::EvaluateSpec asked;
  asked.add_metrics(v1::QUALITY_METRIC_F1);
  v1::StepRecord some;
  AddValidation(evaluation, asked.metrics(), &some);
  EXPECT_EQ(ValueOf(v1::QUALITY_METRIC_F1, some), 70.0 / 85);
  EXPECT_EQ(ValueOf(v1::QUALITY_METRIC_LOSS, some), 0.5);
  EXPECT_EQ(ValueOf(v1::QUALITY_METRIC_ACCURACY, some), std::nullopt);
  evaluation.clear_confusion();
  v1::StepRecord loss;
  AddValidation(evaluation, {}, &loss);
  EXPECT_EQ(ValueOf(v1::QUALITY_METRIC_F1, loss), std::nullopt);
}

}  // namespace
}  // namespace tercio::plan
