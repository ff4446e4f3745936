// Sections about ranks: planned and measured figures, time by phase, memory.
#include <algorithm>
#include <cmath>
#include <map>

#include "absl/strings/str_cat.h"
#include "cli/plot/bars.h"
#include "cli/plot/heat_map.h"
#include "cli/plot/scale.h"
#include "cli/report/sections.h"
#include "cli/report/texts.h"

namespace tercio::report {
namespace {

// A chart of more bars is longer than a screen.
constexpr int kMostBars = 24;  // ranks with a bar of their own; more are grouped by stage
constexpr double kRankFigureWidth = 620;

struct Phase {
  const char* name;
  double (v1::PhaseSeconds::*seconds)() const;
};
constexpr Phase kPhases[] = {{"forward", &v1::PhaseSeconds::forward},
                             {"backward", &v1::PhaseSeconds::backward},
                             {"wait", &v1::PhaseSeconds::wait},
                             {"optimizer", &v1::PhaseSeconds::optimizer},
                             {"data", &v1::PhaseSeconds::data},
                             {"checkpoint", &v1::PhaseSeconds::checkpoint},
                             {"evaluation", &v1::PhaseSeconds::evaluation},
                             {"other", &v1::PhaseSeconds::other}};

double WholeOf(const v1::PhaseSeconds& phases) {
  // The phases sum to the loop's time by construction (worker/progress/phase_clock.h).
  double sum = 0;
  for (const Phase& phase : kPhases) sum += (phases.*phase.seconds)();
  return sum;
}

// Ranks that have figures, one by one or by pipeline stage.
using Groups = std::vector<std::pair<std::string, std::vector<const v1::RankView*>>>;
Groups GroupsOf(const v1::JobStatus& status) {
  Groups groups;
  // Ranks of a stage do the same work, so that their average says something.
  const bool by_stage = status.ranks_size() > kMostBars;
  std::map<int, std::vector<const v1::RankView*>> stages;
  for (const v1::RankView& rank : status.ranks()) {
    if (!rank.has_figures()) continue;
    if (by_stage) {
      stages[rank.pipeline()].push_back(&rank);
    } else {
      groups.push_back({absl::StrCat("rank ", rank.rank()), {&rank}});
    }
  }
  for (auto& [stage, ranks] : stages) {
    std::string name = absl::StrCat("stage ", stage, " (", ranks.size(), " ranks)");
    groups.emplace_back(std::move(name), std::move(ranks));
  }
  return groups;
}

std::string PhasesChart(const Subject& subject) {
  plot::BarChart chart;
  chart.title = absl::StrCat("Time by phase: ", subject.job->label);
  chart.unit = "share of the loop's time";
  chart.label = chart.title;
  chart.shares = true;
  chart.width = kRankFigureWidth;
  const Groups groups = GroupsOf(subject.job->status);
  // Colours are given to all kinds, so that a kind has the same one in every chart.
  int colour = 0;
  for (const Phase& phase : kPhases) {
    plot::BarSeries series;
    series.name = phase.name;
    series.colour = colour++;
    double sum = 0;
    for (const auto& [name, ranks] : groups) {
      double share = 0;
      for (const v1::RankView* rank : ranks) {
        const v1::PhaseSeconds& phases = rank->figures().phases();
        const double whole = WholeOf(phases);
        // Each rank counts alike, however long it has run.
        share +=
            whole > 0 ? (phases.*phase.seconds)() / whole / static_cast<double>(ranks.size()) : 0;
      }
      series.values.push_back(share);
      sum += share;
    }
    // A phase that never happened would only take room in the legend.
    if (sum > 0) chart.series.push_back(std::move(series));
  }
  for (const auto& [name, ranks] : groups) chart.categories.push_back(name);
  return plot::Draw(chart, plot::SvgPlace::kPage);
}

// A map of value(figures) of each rank: a row for each stage, a column for each position in it.
template <typename Value>
std::string RankMap(const Subject& subject, const std::string& title, const std::string& unit,
                    const Value& value) {
  plot::HeatMap map;
  map.title = absl::StrCat(title, ": ", subject.job->label);
  map.label = map.title;
  map.unit = unit;
  map.x_title = "ranks of the stage (data, tensor)";
  map.width = kRankFigureWidth;
  const v1::Layout& layout = subject.job->status.plan().layout();
  for (const v1::RankView& rank : subject.job->status.ranks()) {
    const auto row = static_cast<size_t>(std::clamp(rank.pipeline(), 0, 1 << 14));
    // Data and tensor rank together give the position; numbers from elsewhere are bounded.
    const auto column = static_cast<size_t>(
        std::clamp(rank.data() * std::max(1, layout.tensor()) + rank.tensor(), 0, 1 << 20));
    if (map.values.size() <= row) map.values.resize(row + 1);
    if (map.values[row].size() <= column) map.values[row].resize(column + 1, std::nan(""));
    // A rank without figures stays empty, which is no value of zero.
    if (rank.has_figures()) map.values[row][column] = value(rank.figures());
  }
  for (size_t row = 0; row < map.values.size(); ++row)
    map.rows.push_back(absl::StrCat("stage ", row));
  return plot::Draw(map, plot::SvgPlace::kPage);
}

std::string MemoryChart(const Subject& subject) {
  const Groups groups = GroupsOf(subject.job->status);
  plot::BarChart chart;
  chart.title = absl::StrCat("Memory: ", subject.job->label);
  chart.label = chart.title;
  // These figures contain one another, so that a sum would mean nothing.
  chart.stacked = false;
  chart.totals = true;
  chart.width = kRankFigureWidth;
  struct Kind {
    const char* name;
    int64_t (v1::RankFigures::*bytes)() const;
  };
  constexpr Kind kKinds[] = {{"planned", &v1::RankFigures::planned_bytes},
                             {"used", &v1::RankFigures::used_bytes},
                             {"peak, including memory outside it", &v1::RankFigures::peak_bytes},
                             {"resident (whole process)", &v1::RankFigures::resident_bytes}};
  double most = 0;
  int colour = 0;
  for (const Kind& kind : kKinds) {
    plot::BarSeries series{kind.name, {}, colour++};
    for (const auto& [name, ranks] : groups) {
      // The largest rank decides whether the stage fits.
      double greatest = 0;
      for (const v1::RankView* rank : ranks) {
        greatest = std::max(greatest, static_cast<double>((rank->figures().*kind.bytes)()));
      }
      series.values.push_back(greatest);
      most = std::max(most, greatest);
    }
    const bool known = std::any_of(series.values.begin(), series.values.end(),
                                   [](double value) { return value > 0; });
    // Early versions did not report every kind.
    if (known) chart.series.push_back(std::move(series));
  }
  const plot::Unit unit = plot::BytesUnit(most);
  chart.unit = unit.name;
  for (plot::BarSeries& series : chart.series) {
    for (double& value : series.values) value /= unit.divisor;
  }
  for (const auto& [name, ranks] : groups) {
    // The bar of a group is no rank's own figure.
    chart.categories.push_back(ranks.size() > 1 ? absl::StrCat(name, ", maximum") : name);
  }
  return plot::Draw(chart, plot::SvgPlace::kPage);
}

bool HasFigures(const Subject& subject) {
  return std::any_of(subject.job->status.ranks().begin(), subject.job->status.ranks().end(),
                     [](const v1::RankView& rank) { return rank.has_figures(); });
}

void AddPlanRow(const std::string& job, const std::string& quantity, std::optional<double> planned,
                std::optional<double> measured, std::string (*text)(double),
                std::vector<std::vector<Cell>>* table) {
  // A ratio needs both.
  const bool both = planned.has_value() && measured.has_value();
  table->push_back({{job},
                    {quantity},
                    {OrNotKnown(planned, text), true},
                    {OrNotKnown(measured, text), true},
                    {both ? RatioText(*measured, *planned) : "", true}});
}

std::optional<double> AsDouble(const std::optional<int64_t>& value) {
  if (!value.has_value()) return std::nullopt;
  return static_cast<double>(*value);
}

}  // namespace

void AddPlanned(const Subjects& subjects, Page* page) {
  std::vector<std::vector<Cell>> table = {
      {{"job"}, {"quantity"}, {"planned", true}, {"measured", true}, {"measured / planned", true}}};
  for (const Subject& subject : subjects) {
    const v1::Plan& plan = subject.job->status.plan();
    // A job that never had a plan has nothing to compare.
    if (!subject.job->status.has_plan()) continue;
    const Numbers& numbers = subject.numbers;
    const auto predicted = [&](double value) {
      // A prediction of 0 was not made.
      return plan.has_predicted() && value > 0 ? std::optional<double>(value) : std::nullopt;
    };
    const v1::Prediction& told = plan.predicted();
    std::optional<double> seconds;
    if (numbers.step_seconds.has_value()) seconds = numbers.step_seconds->median;
    std::string job = subject.job->label;
    // The job is named once for all of its rows.
    AddPlanRow(job, "time of a step", predicted(told.step_seconds()), seconds, SecondsText, &table);
    AddPlanRow("", "tokens per second", predicted(told.tokens_per_second()),
               numbers.tokens_per_second, plot::ShortText, &table);
    AddPlanRow("", "MFU", predicted(told.mfu()), numbers.mfu, PercentText, &table);
    // The formula is the plan's; what corresponds to it in a run is the time spent waiting.
    AddPlanRow("", "bubble; measured: waiting / computing",
               plan.has_predicted() ? std::optional<double>(told.bubble_ratio()) : std::nullopt,
               numbers.wait_per_compute, PercentText, &table);
    // The stage with the most memory decides, as in the plan's own prediction.
    int64_t planned = 0;
    for (const v1::StagePlan& stage : plan.stages())
      planned = std::max(planned, stage.memory().total_bytes());
    AddPlanRow("", "arena per rank, maximum; measured: in use",
               planned > 0 ? std::optional<double>(planned) : std::nullopt,
               AsDouble(numbers.used_bytes_most), BytesText, &table);
    // Plans do not count this memory, so that there is nothing to compare it with.
    AddPlanRow("", "memory outside the arena per rank, maximum", std::nullopt,
               AsDouble(numbers.outside_bytes_most), BytesText, &table);
  }
  page->Section("Planned and measured");
  if (table.size() == 1) return page->Paragraph("No plan yet.", "soft");
  page->Table(table);
}

void AddPhases(const Subjects& subjects, Page* page) {
  page->Section("Time by phase");
  std::vector<std::string> figures;
  for (const Subject& subject : subjects) {
    if (!HasFigures(subject)) continue;
    figures.push_back(PhasesChart(subject));
    // A map of a few ranks shows no more than the bars do.
    if (subject.job->status.ranks_size() <= 8) continue;
    figures.push_back(
        RankMap(subject, "Share of the time spent waiting", "%", [](const v1::RankFigures& rank) {
          const double whole = WholeOf(rank.phases());
          // NaN leaves the cell empty.
          return whole > 0 ? 100 * rank.phases().wait() / whole : std::nan("");
        }));
  }
  if (figures.empty()) return page->Paragraph("Not known: no rank has reported.", "soft");
  page->Figures(figures);
  page->Paragraph(
      "Figures of the current or last attempt. Waiting means waiting for other ranks: for "
      "messages, "
      "for sums, and for the slowest of them.",
      "soft");
}

void AddMemory(const Subjects& subjects, Page* page) {
  page->Section("Memory of each rank");
  std::vector<std::string> figures;
  for (const Subject& subject : subjects) {
    if (!HasFigures(subject)) continue;
    figures.push_back(MemoryChart(subject));
    // Where every rank has a bar, a map would repeat it.
    if (subject.job->status.ranks_size() <= kMostBars) continue;
    figures.push_back(RankMap(subject, "Peak memory", "MiB", [](const v1::RankFigures& rank) {
      return static_cast<double>(rank.peak_bytes()) / (1 << 20);
    }));
  }
  if (figures.empty()) return page->Paragraph("Not known: no rank has reported.", "soft");
  page->Figures(figures);
}

}  // namespace tercio::report
