// The scores of a classifier, from the table of its predictions. Pure.
//
// The figures are those of scikit-learn's classification_report; classes that never occur, or are
// never predicted, have no rate and count as 0.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "proto/tercio/v1/events.pb.h"
#include "proto/tercio/v1/job.pb.h"

namespace tercio::plan {

struct ClassScores {
  double precision = 0;  // right / predicted as this class
  double recall = 0;     // right / examples of this class
  double f1 = 0;         // harmonic mean of both
  int64_t support = 0;   // examples of this class
};

struct Quality {
  double accuracy = 0;
  std::vector<ClassScores> classes;
  ClassScores macro;     // mean over classes, each counting alike; support: all examples
  ClassScores weighted;  // mean over classes, weighted by their examples; support: all examples
  // One figure for each metric: scores of the second class if there are two (as GLUE reports them),
  // else the macro average.
  ClassScores overall;
};

// An empty table. REQUIRES: classes >= 2.
v1::Confusion EmptyConfusion(int classes);

// Counts an example of class `label` that was predicted as `predicted`.
void Count(int label, int predicted, v1::Confusion* confusion);

// Whether the table is square and counts nothing negative: messages are not trusted.
bool IsConfusion(const v1::Confusion& confusion);

// REQUIRES: IsConfusion(confusion).
Quality QualityOf(const v1::Confusion& confusion);

// The metric's value. REQUIRES: a named metric; for all but the loss IsConfusion.
double ValueOf(v1::QualityMetric metric, const v1::Evaluation& evaluation);

// Whether `value` is better than `than` by this metric: a loss is better when it is lower, all
// others when they are higher. Of two equal values neither is better; NaN is worse than any number.
bool IsBetter(v1::QualityMetric metric, double value, double than);

// Whether a step of this value is better than the best one so far; `best` null: there is none. A
// step whose value is NaN never is.
bool BeatsBest(v1::QualityMetric metric, double value, const v1::BestEvaluation* best);

// The most classes whose confusion is counted: the table is part of every evaluation that is
// reported and kept. Evaluations of models with more classes have a loss only.
inline constexpr int kMostScoredClasses = 256;

// Whether evaluations of the model have a confusion.
bool ScoresClasses(const v1::ModelSpec& model);

// The metrics that evaluations of the model have: the loss first.
std::vector<v1::QualityMetric> MetricsOf(const v1::ModelSpec& model);

// Sets the loss in the record, and those of `metrics` that the evaluation has.
void AddValidation(const v1::Evaluation& evaluation,
                   const google::protobuf::RepeatedField<int>& metrics, v1::StepRecord* step);

// The value of the metric in the record; nullopt: not evaluated, or not reported. REQUIRES: a named
// metric.
std::optional<double> ValueOf(v1::QualityMetric metric, const v1::StepRecord& step);

}  // namespace tercio::plan
