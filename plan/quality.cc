#include "plan/quality.h"

#include <algorithm>
#include <cmath>

#include "common/check.h"
#include "plan/names.h"

namespace tercio::plan {
namespace {

double Ratio(int64_t part, int64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

int64_t CountAt(const v1::Confusion& confusion, int label, int predicted) {
  return confusion.counts(label * confusion.classes() + predicted);
}

ClassScores ScoresOf(const v1::Confusion& confusion, int label) {
  int64_t predicted = 0;
  ClassScores scores;
  for (int i = 0; i < confusion.classes(); ++i) {
    predicted += CountAt(confusion, i, label);
    scores.support += CountAt(confusion, label, i);
  }
  const int64_t right = CountAt(confusion, label, label);
  scores.precision = Ratio(right, predicted);
  scores.recall = Ratio(right, scores.support);
  // F1 is 2 TP / (2 TP + FP + FN); predicted is TP + FP, and support is TP + FN.
  scores.f1 = Ratio(2 * right, predicted + scores.support);
  return scores;
}

void AddScores(const ClassScores& scores, double weight, ClassScores* sum) {
  sum->precision += scores.precision * weight;
  sum->recall += scores.recall * weight;
  sum->f1 += scores.f1 * weight;
}

}  // namespace

v1::Confusion EmptyConfusion(int classes) {
  TERCIO_CHECK_GE(classes, 2);
  v1::Confusion confusion;
  confusion.set_classes(classes);
  confusion.mutable_counts()->Resize(classes * classes, 0);
  return confusion;
}

void Count(int label, int predicted, v1::Confusion* confusion) {
  const int classes = confusion->classes();
  TERCIO_CHECK(label >= 0 && label < classes && predicted >= 0 && predicted < classes);
  const int place = label * classes + predicted;
  confusion->set_counts(place, confusion->counts(place) + 1);
}

bool IsConfusion(const v1::Confusion& confusion) {
  const int64_t classes = confusion.classes();
  return classes >= 2 && classes * classes == confusion.counts_size() &&
         std::all_of(confusion.counts().begin(), confusion.counts().end(),
                     [](int64_t count) { return count >= 0; });
}

Quality QualityOf(const v1::Confusion& confusion) {
  TERCIO_CHECK(IsConfusion(confusion));
  Quality quality;
  int64_t examples = 0;
  int64_t right = 0;
  for (int label = 0; label < confusion.classes(); ++label) {
    quality.classes.push_back(ScoresOf(confusion, label));
    examples += quality.classes.back().support;
    right += CountAt(confusion, label, label);
  }
  for (const ClassScores& scores : quality.classes) {
    AddScores(scores, 1.0 / static_cast<double>(confusion.classes()), &quality.macro);
    AddScores(scores, Ratio(scores.support, examples), &quality.weighted);
  }
  quality.macro.support = examples;
  quality.weighted.support = examples;
  quality.accuracy = Ratio(right, examples);
  quality.overall = confusion.classes() == 2 ? quality.classes[1] : quality.macro;
  return quality;
}

double ValueOf(v1::QualityMetric metric, const v1::Evaluation& evaluation) {
  TERCIO_CHECK(IsNamed(metric));
  if (metric == v1::QUALITY_METRIC_LOSS) return evaluation.loss();
  const Quality quality = QualityOf(evaluation.confusion());
  switch (metric) {
    case v1::QUALITY_METRIC_PRECISION:
      return quality.overall.precision;
    case v1::QUALITY_METRIC_RECALL:
      return quality.overall.recall;
    case v1::QUALITY_METRIC_F1:
      return quality.overall.f1;
    case v1::QUALITY_METRIC_ACCURACY:
    case v1::QUALITY_METRIC_UNSPECIFIED:
    case v1::QUALITY_METRIC_LOSS:
    case v1::QualityMetric_INT_MIN_SENTINEL_DO_NOT_USE_:
    case v1::QualityMetric_INT_MAX_SENTINEL_DO_NOT_USE_:
      break;
  }
  return quality.accuracy;
}

bool IsBetter(v1::QualityMetric metric, double value, double than) {
  if (std::isnan(value)) return false;
  if (std::isnan(than)) return true;
  return metric == v1::QUALITY_METRIC_LOSS ? value < than : value > than;
}

bool BeatsBest(v1::QualityMetric metric, double value, const v1::BestEvaluation* best) {
  if (std::isnan(value)) return false;
  return best == nullptr || IsBetter(metric, value, best->value());
}

bool ScoresClasses(const v1::ModelSpec& model) {
  return model.labels() >= 2 && model.labels() <= kMostScoredClasses;
}

std::vector<v1::QualityMetric> MetricsOf(const v1::ModelSpec& model) {
  if (!ScoresClasses(model)) return {v1::QUALITY_METRIC_LOSS};
  return {v1::QUALITY_METRIC_LOSS, v1::QUALITY_METRIC_ACCURACY, v1::QUALITY_METRIC_PRECISION,
          v1::QUALITY_METRIC_RECALL, v1::QUALITY_METRIC_F1};
}

void AddValidation(const v1::Evaluation& evaluation,
                   const google::protobuf::RepeatedField<int>& metrics, v1::StepRecord* step) {
  step->set_validation_loss(evaluation.loss());
  if (evaluation.has_figures()) {
    *step->mutable_validation_figures() = evaluation.figures();
  }
  if (!evaluation.has_confusion()) return;
  const Quality quality = QualityOf(evaluation.confusion());
  const auto wanted = [&metrics](v1::QualityMetric metric) {
    return metrics.empty() || std::find(metrics.begin(), metrics.end(), metric) != metrics.end();
  };
  if (wanted(v1::QUALITY_METRIC_ACCURACY)) step->set_validation_accuracy(quality.accuracy);
  if (wanted(v1::QUALITY_METRIC_PRECISION)) {
    step->set_validation_precision(quality.overall.precision);
  }
  if (wanted(v1::QUALITY_METRIC_RECALL)) step->set_validation_recall(quality.overall.recall);
  if (wanted(v1::QUALITY_METRIC_F1)) step->set_validation_f1(quality.overall.f1);
}

std::optional<double> ValueOf(v1::QualityMetric metric, const v1::StepRecord& step) {
  TERCIO_CHECK(IsNamed(metric));
  const auto known = [](bool has, double value) {
    return has ? std::optional<double>(value) : std::nullopt;
  };
  switch (metric) {
    case v1::QUALITY_METRIC_LOSS:
      return known(step.has_validation_loss(), step.validation_loss());
    case v1::QUALITY_METRIC_ACCURACY:
      return known(step.has_validation_accuracy(), step.validation_accuracy());
    case v1::QUALITY_METRIC_PRECISION:
      return known(step.has_validation_precision(), step.validation_precision());
    case v1::QUALITY_METRIC_RECALL:
      return known(step.has_validation_recall(), step.validation_recall());
    case v1::QUALITY_METRIC_F1:
      return known(step.has_validation_f1(), step.validation_f1());
    case v1::QUALITY_METRIC_UNSPECIFIED:
    case v1::QualityMetric_INT_MIN_SENTINEL_DO_NOT_USE_:
    case v1::QualityMetric_INT_MAX_SENTINEL_DO_NOT_USE_:
      break;
  }
  return std::nullopt;
}

}  // namespace tercio::plan
