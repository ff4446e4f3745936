// Curves of jobs over each other: which quantities, over what, smoothed or not.
//
// Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/plot/figure.h"
#include "cli/report/job_data.h"

namespace tercio::report {

struct CurveOptions {
  // Metrics to draw, one panel each: loss, validation_loss, validation_accuracy,
  // validation_precision, validation_recall, validation_f1, throughput, step_seconds, memory,
  // grad_norm, learning_rate.
  std::vector<std::string> metrics = {"loss", "throughput"};
  std::string x = "step";  // "step" | "tokens" | "time" (seconds of steps, added up)
  int smooth = 1;  // moving average over this many steps; the raw curves stay behind it, faint
  bool logarithmic = false;
  double width = 720;
  double panel_height = 190;
};

// INVALID_ARGUMENT: an unknown metric or x.
absl::StatusOr<plot::Figure> CurvesOf(const std::vector<JobData>& jobs,
                                      const CurveOptions& options);

// The distribution of step durations of each job, as the outline of a histogram.
plot::Figure StepTimes(const std::vector<JobData>& jobs);

// |difference| between the losses of each job and those of the first.
plot::Figure LossDifferences(const std::vector<JobData>& jobs);

}  // namespace tercio::report
