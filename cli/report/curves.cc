#include "cli/report/curves.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/report/numbers.h"
#include "plan/objective_figures.h"
#include "plan/quality.h"

namespace tercio::report {
namespace {

// Gaps of a curve are NaN, which no axis shows.
constexpr double kNothing = std::numeric_limits<double>::quiet_NaN();
// More bins than this would be empty for a job of a few hundred steps.
constexpr int kBins = 48;

struct Metric {
  const char* name;
  const char* title;
  const char* unit;
  bool from_zero;
  bool points;  // few values
  // `before` is the step before in the list, or null.
  std::function<double(const v1::StepRecord& step, const v1::StepRecord* before)> value;
};

double Throughput(const v1::StepRecord& step, const v1::StepRecord* before) {
  // A step that is missing in the list leaves its tokens to the next one.
  const int64_t steps = step.step() - (before == nullptr ? 0 : before->step());
  const int64_t tokens = step.tokens() - (before == nullptr ? 0 : before->tokens());
  if (steps <= 0 || step.step_seconds() <= 0) return kNothing;
  return static_cast<double>(tokens) / static_cast<double>(steps) / step.step_seconds();
}

// A score of a classifier, where it was evaluated.
Metric ScoreMetric(const char* name, const char* title, v1::QualityMetric metric) {
  return {name, title, "validation data", false, true, [metric](const auto& step, const auto*) {
            return plan::ValueOf(metric, step).value_or(kNothing);
          }};
}

std::vector<Metric> OwnMetrics() {
  return {
      {"loss", "Loss", "nats per token", false, false,
       [](const auto& step, const auto*) { return step.loss(); }},
      {"validation_loss", "Validation loss", "nats per token", false, true,
       [](const auto& step, const auto*) {
         return step.has_validation_loss() ? step.validation_loss() : kNothing;
       }},
      ScoreMetric("validation_accuracy", "Accuracy", v1::QUALITY_METRIC_ACCURACY),
      ScoreMetric("validation_precision", "Precision", v1::QUALITY_METRIC_PRECISION),
      ScoreMetric("validation_recall", "Recall", v1::QUALITY_METRIC_RECALL),
      ScoreMetric("validation_f1", "F1", v1::QUALITY_METRIC_F1),
      {"throughput", "Throughput", "tokens/s", true, false, Throughput},
      {"step_seconds", "Duration of a step", "s", true, false,
       [](const auto& step, const auto*) { return step.step_seconds(); }},
      {"memory", "Memory of rank 0", "", true, false,
       [](const auto& step, const auto*) {
         // A rank on a GPU reports both; the process is what the machine has to hold.
         const int64_t bytes =
             step.resident_bytes() > 0 ? step.resident_bytes() : step.used_bytes();
         return bytes > 0 ? static_cast<double>(bytes) : kNothing;
       }},
      {"grad_norm", "Gradient norm", "before clipping", true, false,
       [](const auto& step, const auto*) { return step.grad_norm(); }},
      {"learning_rate", "Learning rate", "", true, false,
       [](const auto& step, const auto*) { return step.learning_rate(); }},
  };
}

// Those of the training's batches, then those of validation data.
void AddPreferenceMetrics(std::vector<Metric>* metrics) {
  for (const plan::ObjectiveFigure& figure : plan::ObjectiveFigureList()) {
    metrics->push_back({figure.name.data(), figure.title.data(), figure.unit.data(), false, false,
                        [&figure](const auto& step, const auto*) {
                          return figure.value(step.figures()).value_or(kNothing);
                        }});
  }
  // The names live as long as the list.
  static const std::vector<std::string>* const names = [] {
    auto* all = new std::vector<std::string>;
    for (const plan::ObjectiveFigure& figure : plan::ObjectiveFigureList()) {
      all->push_back("validation_" + std::string(figure.name));
    }
    return all;
  }();
  for (size_t i = 0; i < names->size(); ++i) {
    const plan::ObjectiveFigure& figure = plan::ObjectiveFigureList()[i];
    metrics->push_back({(*names)[i].c_str(), figure.title.data(), "validation data", false, true,
                        [&figure](const auto& step, const auto*) {
                          return figure.value(step.validation_figures()).value_or(kNothing);
                        }});
  }
}

const std::vector<Metric>& Metrics() {
  // The list never dies, so that pointers into it stay valid while the program ends.
  static const std::vector<Metric>* const metrics = [] {
    auto* all = new std::vector<Metric>(OwnMetrics());
    AddPreferenceMetrics(all);
    return all;
  }();
  return *metrics;
}

const Metric* FindMetric(const std::string& name) {
  for (const Metric& metric : Metrics()) {
    if (name == metric.name) return &metric;
  }
  return nullptr;
}

std::vector<double> Positions(const std::vector<v1::StepRecord>& steps, const std::string& x) {
  std::vector<double> positions;
  positions.reserve(steps.size());
  double seconds = 0;
  for (const v1::StepRecord& step : steps) {
    // A step without a duration would make all later positions NaN.
    if (std::isfinite(step.step_seconds())) seconds += step.step_seconds();
    positions.push_back(x == "step"     ? static_cast<double>(step.step())
                        : x == "tokens" ? static_cast<double>(step.tokens())
                                        : seconds);
  }
  return positions;
}

plot::Series SeriesOf(const JobData& job, const Metric& metric,
                      const std::vector<double>& positions) {
  plot::Series series;
  series.x = positions;
  series.y.reserve(positions.size());
  const v1::StepRecord* before = nullptr;
  for (const v1::StepRecord& step : job.steps) {
    // Values may depend on the step before, also where its own value is a gap.
    series.y.push_back(metric.value(step, before));
    before = &step;
  }
  series.points = metric.points;
  if (metric.points) {  // a line from one evaluation to the next, not a gap at all other steps
    plot::Series few = series;
    few.x.clear();
    few.y.clear();
    for (size_t i = 0; i < series.x.size(); ++i) {
      if (!std::isfinite(series.y[i])) continue;
      few.x.push_back(series.x[i]);
      few.y.push_back(series.y[i]);
    }
    return few;
  }
  return series;
}

void AddSeries(plot::Series series, const CurveOptions& options, plot::Panel* panel) {
  // Smoothing a few points would invent values between them.
  if (options.smooth > 1 && !series.points) {
    // The single steps stay visible behind their mean.
    plot::Series faint = series;
    faint.faint = true;
    panel->series.push_back(std::move(faint));
    series.y = plot::Smoothed(series.y, options.smooth);
  }
  panel->series.push_back(std::move(series));
}

// Marks the steps whose attempt is later than that of the step before.
void AddMarks(const JobData& job, int colour, const std::vector<double>& positions,
              plot::Panel* panel) {
  for (size_t i = 1; i < job.steps.size(); ++i) {
    if (job.steps[i].attempt() > job.steps[i - 1].attempt())
      panel->marks.push_back({positions[i], colour});
  }
}

// Scales bytes to a suitable unit.
void ScaleBytes(plot::Panel* panel) {
  double most = 0;
  for (const plot::Series& series : panel->series) {
    // A gap must not decide the unit.
    for (const double y : series.y) most = std::isfinite(y) ? std::max(most, y) : most;
  }
  const plot::Unit unit = plot::BytesUnit(most);
  panel->unit = unit.name;
  for (plot::Series& series : panel->series) {
    for (double& y : series.y) y /= unit.divisor;
  }
}

absl::Status Check(const CurveOptions& options) {
  for (const std::string& name : options.metrics) {
    // Names are checked before any job is asked for.
    if (FindMetric(name) != nullptr) continue;
    std::vector<std::string> names;
    for (const Metric& metric : Metrics()) names.push_back(metric.name);
    return absl::InvalidArgumentError(absl::StrCat(
        "--metric ", name, ": unknown metric; use one of ", absl::StrJoin(names, ", ")));
  }
  if (options.x != "step" && options.x != "tokens" && options.x != "time") {
    return absl::InvalidArgumentError(
        absl::StrCat("--x ", options.x, ": expected step, tokens or time"));
  }
  return absl::OkStatus();
}

// The number of steps whose loss cannot be drawn.
int64_t LossGaps(const std::vector<JobData>& jobs, const CurveOptions& options) {
  if (std::find(options.metrics.begin(), options.metrics.end(), "loss") == options.metrics.end())
    return 0;
  int64_t gaps = 0;
  for (const JobData& job : jobs) {
    gaps += std::count_if(job.steps.begin(), job.steps.end(),
                          [](const v1::StepRecord& step) { return !std::isfinite(step.loss()); });
  }
  return gaps;
}

}  // namespace

absl::StatusOr<plot::Figure> CurvesOf(const std::vector<JobData>& jobs,
                                      const CurveOptions& options) {
  if (const absl::Status status = Check(options); !status.ok()) return status;
  plot::Figure figure;
  figure.width = options.width;
  figure.panel_height = options.panel_height;
  figure.marks_name = "restart";
  // Steps and tokens are whole numbers, and so are the numbers on their axis.
  figure.whole_x = options.x != "time";
  figure.x_title = options.x == "time" ? "seconds of training steps" : options.x;
  figure.label = absl::StrCat(absl::StrJoin(options.metrics, ", "), " by ", options.x);
  // Where the validation loss has a panel of its own, it is not drawn twice.
  const bool with_validation = std::find(options.metrics.begin(), options.metrics.end(),
                                         "validation_loss") == options.metrics.end();
  for (const std::string& name : options.metrics) {
    const Metric& metric = *FindMetric(name);
    plot::Panel panel{metric.title, metric.unit, {}, {}, options.logarithmic, metric.from_zero};
    for (size_t i = 0; i < jobs.size(); ++i) {
      const std::vector<double> positions = Positions(jobs[i].steps, options.x);
      plot::Series series = SeriesOf(jobs[i], metric, positions);
      // The first job's curve is drawn below the others and has to remain visible.
      series.name = jobs[i].label;
      series.colour = static_cast<int>(i);
      // Beyond the number of colours, dashes tell jobs of equal colour apart.
      series.dashed = i >= plot::kColours;
      series.wide = i == 0 && jobs.size() > 1;
      AddSeries(std::move(series), options, &panel);
      if (name == "loss" && with_validation) {
        plot::Series validation = SeriesOf(jobs[i], *FindMetric("validation_loss"), positions);
        validation.name =
            jobs.size() == 1 ? "validation" : absl::StrCat(jobs[i].label, ", validation");
        validation.colour = static_cast<int>(jobs.size() == 1 ? 1 : i);
        validation.dashed = true;
        if (!validation.x.empty()) panel.series.push_back(std::move(validation));
      }
      // A restart may explain a jump, so it is marked where it happened.
      AddMarks(jobs[i], static_cast<int>(i), positions, &panel);
    }
    if (name == "memory") ScaleBytes(&panel);
    figure.panels.push_back(std::move(panel));
  }
  if (options.smooth > 1)
    figure.note = absl::StrCat("Bold: means over ", options.smooth, " steps. Faint: each step.");
  // A gap without an explanation would look like missing data.
  if (const int64_t gaps = LossGaps(jobs, options); gaps > 0) {
    absl::StrAppend(&figure.note, figure.note.empty() ? "" : " ", "The loss of ", gaps,
                    gaps == 1 ? " step" : " steps", " is not finite.");
  }
  return figure;
}

plot::Figure StepTimes(const std::vector<JobData>& jobs) {
  plot::Range range;
  for (const JobData& job : jobs) {
    const auto seconds = NumbersOf(job).step_seconds;
    if (!seconds.has_value()) continue;
    // Few steps are beyond the slowest hundredth, and they would squeeze all others together.
    range.Add(seconds->least, plot::AxisKind::kLinear);
    range.Add(std::max(seconds->p99, 1.1 * seconds->median), plot::AxisKind::kLinear);
  }
  plot::Figure figure;
  const plot::Unit unit = plot::SecondsUnit(range.high);
  figure.label = "Durations of steps";
  figure.x_title = absl::StrCat("duration of a step, ", unit.name);
  figure.panel_height = 130;
  plot::Panel panel{"Durations of steps", "share of the steps in each bin", {}, {}, false, true};
  // All steps of equal length make one bin.
  const double width = range.empty ? 1 : (range.high - range.low) / kBins;
  for (size_t i = 0; i < jobs.size() && !range.empty; ++i) {
    std::vector<double> shares(kBins, 0);
    for (const v1::StepRecord& step : jobs[i].steps) {
      const double at = width > 0 ? (step.step_seconds() - range.low) / width : 0;
      // Steps beyond the range are left out of the bins, but not of the whole.
      if (at >= 0 && at <= kBins) ++shares[std::min(kBins - 1, static_cast<int>(at))];
    }
    plot::Series series;
    series.name = jobs[i].label;
    series.colour = static_cast<int>(i);
    for (int bin = 0; bin < kBins; ++bin) {
      // Shares are comparable between jobs of different lengths.
      const double share = shares[bin] / std::max(1.0, static_cast<double>(jobs[i].steps.size()));
      // Each bin is two points, so that the line has steps.
      series.x.insert(series.x.end(), {(range.low + bin * width) / unit.divisor,
                                       (range.low + (bin + 1) * width) / unit.divisor});
      series.y.insert(series.y.end(), {share, share});
    }
    panel.series.push_back(std::move(series));
  }
  figure.panels.push_back(std::move(panel));
  return figure;
}

plot::Figure LossDifferences(const std::vector<JobData>& jobs) {
  plot::Figure figure;
  figure.label = "Differences of losses by step";
  figure.x_title = "step";
  figure.whole_x = true;
  figure.panel_height = 130;
  plot::Panel panel{"Difference of the loss",
                    absl::StrCat("|loss - loss of ", jobs.front().label, "|; a gap where equal"),
                    {},
                    {},
                    // Differences span many powers of ten.
                    true,
                    false};
  for (size_t i = 1; i < jobs.size(); ++i) {
    plot::Series series;
    series.name = jobs[i].label;
    series.colour = static_cast<int>(i);
    size_t k = 0;
    for (const v1::StepRecord& step : jobs[i].steps) {
      const std::vector<v1::StepRecord>& base = jobs.front().steps;
      // Both lists are ascending, so that one pass finds the common steps.
      while (k < base.size() && base[k].step() < step.step()) ++k;
      if (k == base.size() || base[k].step() != step.step()) continue;
      const double difference = std::abs(step.loss() - base[k].loss());
      series.x.push_back(static_cast<double>(step.step()));
      // Zero has no place on a logarithmic axis.
      series.y.push_back(difference > 0 ? difference : kNothing);
    }
    panel.series.push_back(std::move(series));
  }
  figure.panels.push_back(std::move(panel));
  return figure;
}

}  // namespace tercio::report
