#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "cli/compare/results.h"
#include "cli/plot/bars.h"
#include "cli/plot/figure.h"
#include "cli/plot/scale.h"
#include "cli/report/curves.h"

namespace tercio::compare {
namespace {

// Two figures stand side by side on a page.
constexpr double kFigureWidth = 620;
// Curves of more steps than this are noise, so they are smoothed.
constexpr size_t kManySteps = 400;

using BarValue = std::optional<double> Method::*;

struct Bars {
  const char* file;
  const char* title;
  const char* unit;
};

bool HasBars(const plot::BarChart& chart) {
  return std::any_of(chart.series.begin(), chart.series.end(), [](const plot::BarSeries& series) {
    return std::any_of(series.values.begin(), series.values.end(),
                       [](double value) { return value > 0; });
  });
}

plot::BarChart ChartOf(const Results& results, const Bars& bars) {
  plot::BarChart chart;
  chart.title = bars.title;
  chart.label = bars.title;
  chart.unit = bars.unit;
  chart.totals = true;
  chart.width = kFigureWidth;
  for (const Method& method : results.methods) {
    // A name in the figure is not read as one of our own results.
    chart.categories.push_back(method.kind == MethodKind::kBaseline
                                   ? absl::StrCat(method.name, " (baseline)")
                                   : method.name);
  }
  return chart;
}

plot::BarSeries SeriesOfValue(const Results& results, const char* name, BarValue value, int colour,
                              double factor = 1) {
  plot::BarSeries series{name, {}, colour};
  for (const Method& method : results.methods) {
    // There is no bar where nothing is known.
    series.values.push_back((method.*value).has_value() ? *(method.*value) * factor
                                                        : std::numeric_limits<double>::quiet_NaN());
  }
  return series;
}

void AddChart(const plot::BarChart& chart, const Bars& bars, plot::SvgPlace place,
              std::vector<NamedFigure>* figures) {
  if (HasBars(chart)) figures->push_back({bars.file, plot::Draw(chart, place)});
}

void AddOneValue(const Results& results, const Bars& bars, BarValue value, plot::SvgPlace place,
                 std::vector<NamedFigure>* figures, double factor = 1) {
  plot::BarChart chart = ChartOf(results, bars);
  chart.series.push_back(SeriesOfValue(results, "", value, 0, factor));
  AddChart(chart, bars, place, figures);
}

// Bytes in a unit in which the largest bar is a readable number.
void ScaleToUnit(plot::BarChart* chart, double most) {
  const plot::Unit unit = plot::BytesUnit(most);
  chart->unit = unit.name;
  for (plot::BarSeries& series : chart->series) {
    for (double& value : series.values) value /= unit.divisor;
  }
}

double SumOfKnown(const plot::BarChart& chart, size_t category) {
  double sum = 0;
  for (const plot::BarSeries& series : chart.series) {
    if (std::isfinite(series.values[category])) sum += series.values[category];
  }
  return sum;
}

double MostOf(const plot::BarChart& chart) {
  double most = 0;
  for (size_t i = 0; i < chart.categories.size(); ++i) {
    if (chart.stacked) most = std::max(most, SumOfKnown(chart, i));
    for (const plot::BarSeries& series : chart.series) {
      if (std::isfinite(series.values[i])) most = std::max(most, series.values[i]);
    }
  }
  return most;
}

// The steps of all methods, as jobs for the curves.
std::vector<report::JobData> CurvesData(const Results& results) {
  std::vector<report::JobData> jobs;
  for (const Method& method : results.methods) {
    if (method.history.empty()) continue;
    report::JobData job;
    job.label = method.kind == MethodKind::kBaseline ? absl::StrCat(method.name, " (baseline)")
                                                     : method.name;
    job.steps = method.history;
    jobs.push_back(std::move(job));
  }
  return jobs;
}

void AddCurve(const std::vector<report::JobData>& jobs, const char* file,
              const std::vector<std::string>& metrics, const std::string& x, plot::SvgPlace place,
              std::vector<NamedFigure>* figures) {
  size_t most = 0;
  for (const report::JobData& job : jobs) most = std::max(most, job.steps.size());
  report::CurveOptions options;
  options.metrics = metrics;
  options.x = x;
  options.width = kFigureWidth;
  // An odd window has a middle; some two hundred points remain visible.
  if (most > kManySteps) options.smooth = static_cast<int>(most / 200 * 2 + 1);
  const auto figure = report::CurvesOf(jobs, options);
  if (!figure.ok()) return;
  const bool drawn =
      std::any_of(figure->panels.begin(), figure->panels.end(), [](const plot::Panel& panel) {
        return std::any_of(panel.series.begin(), panel.series.end(), [](const auto& series) {
          return std::any_of(series.y.begin(), series.y.end(),
                             [](double y) { return std::isfinite(y); });
        });
      });
  if (drawn) figures->push_back({file, plot::Draw(*figure, place)});
}

}  // namespace

std::vector<NamedFigure> SpeedFigures(const Results& results, plot::SvgPlace place) {
  std::vector<NamedFigure> figures;
  AddOneValue(results, {"throughput", "Throughput", "samples/s"}, &Method::samples_per_second,
              place, &figures);
  AddOneValue(results, {"efficiency", "Efficiency: speed-up per device", "%"}, &Method::efficiency,
              place, &figures, 100);
  const Bars steps = {"steps", "Time per iteration", "ms"};
  plot::BarChart chart = ChartOf(results, steps);
  chart.stacked = false;
  chart.series = {SeriesOfValue(results, "10th percentile", &Method::step_p10, 2, 1e3),
                  SeriesOfValue(results, "median", &Method::step_median, 0, 1e3),
                  SeriesOfValue(results, "90th percentile", &Method::step_p90, 1, 1e3)};
  AddChart(chart, steps, place, &figures);
  AddOneValue(results, {"waiting", "Waiting for other ranks", "% of the time"}, &Method::wait_share,
              place, &figures, 100);
  const std::string currency =
      results.cost.has_value() && !results.cost->currency.empty() ? results.cost->currency : "";
  AddOneValue(results, {"cost", "Cost", currency.c_str()}, &Method::cost, place, &figures);
  return figures;
}

std::vector<NamedFigure> MemoryFigures(const Results& results, plot::SvgPlace place) {
  std::vector<NamedFigure> figures;
  const Bars memory = {"memory", "Memory of all ranks", ""};
  plot::BarChart chart = ChartOf(results, memory);
  // These figures contain one another, so that a sum would mean nothing.
  chart.stacked = false;
  chart.series = {SeriesOfValue(results, "planned", &Method::planned_bytes, 0),
                  SeriesOfValue(results, "used", &Method::used_bytes, 1),
                  SeriesOfValue(results, "resident (whole processes)", &Method::resident_bytes, 2)};
  ScaleToUnit(&chart, MostOf(chart));
  AddChart(chart, memory, place, &figures);
  const Bars sent = {"communication", "Sent to other ranks, all ranks", ""};
  plot::BarChart bytes = ChartOf(results, sent);
  bytes.series = {SeriesOfValue(results, "tensor", &Method::sent_tensor, 0),
                  SeriesOfValue(results, "pipeline", &Method::sent_pipeline, 1),
                  SeriesOfValue(results, "data", &Method::sent_data, 2),
                  SeriesOfValue(results, "world", &Method::sent_world, 3)};
  ScaleToUnit(&bytes, MostOf(bytes));
  AddChart(bytes, sent, place, &figures);
  return figures;
}

std::vector<NamedFigure> QualityFigures(const Results& results, plot::SvgPlace place) {
  std::vector<NamedFigure> figures;
  const std::vector<report::JobData> jobs = CurvesData(results);
  AddCurve(jobs, "loss", {"loss"}, "step", place, &figures);
  AddCurve(jobs, "loss-by-time", {"loss"}, "time", place, &figures);
  AddCurve(jobs, "validation", {"validation_loss"}, "step", place, &figures);
  AddCurve(jobs, "scores", {"validation_accuracy", "validation_f1"}, "step", place, &figures);
  return figures;
}

const std::vector<std::string>& FigureNames() {
  static const auto* const names = new std::vector<std::string>{
      "throughput",    "efficiency", "steps",        "waiting",    "cost",  "memory",
      "communication", "loss",       "loss-by-time", "validation", "scores"};
  return *names;
}

std::vector<NamedFigure> FiguresOf(const Results& results, plot::SvgPlace place) {
  std::vector<NamedFigure> figures = SpeedFigures(results, place);
  for (const auto& more : {MemoryFigures(results, place), QualityFigures(results, place)}) {
    figures.insert(figures.end(), more.begin(), more.end());
  }
  return figures;
}

}  // namespace tercio::compare
