// Sections about the job as a whole: curves, goodput, faults, checkpoints, environment,
// configuration.
#include <algorithm>
#include <cmath>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/plot/bars.h"
#include "cli/report/configuration.h"
#include "cli/report/curves.h"
#include "cli/report/sections.h"
#include "cli/report/texts.h"
#include "config/job_file.h"
#include "plan/names.h"

namespace tercio::report {
namespace {

// Two figures of this width stand side by side on a page.
constexpr double kFigureWidth = 620;
// Reports are read by people: what is older than this is in the history.
constexpr size_t kMostRows = 50;  // rows of a table

// Curves of more steps than this are noise, so they are smoothed.
constexpr size_t kManySteps = 400;

int SmoothingOf(const std::vector<JobData>& jobs) {
  size_t most = 0;
  for (const JobData& job : jobs) most = std::max(most, job.steps.size());
  // An odd window has a middle; some two hundred points remain visible.
  return most > kManySteps ? static_cast<int>(most / 200 * 2 + 1) : 1;
}

std::string Curves(const std::vector<JobData>& jobs, const std::vector<std::string>& metrics) {
  CurveOptions options;
  options.metrics = metrics;
  options.width = kFigureWidth;
  options.panel_height = 170;
  options.smooth = SmoothingOf(jobs);
  // The metrics are ours, so that only jobs without steps make it fail.
  const auto figure = CurvesOf(jobs, options);
  return figure.ok() ? plot::Draw(*figure, plot::SvgPlace::kPage) : "";
}

std::string Narrow(plot::Figure figure) {
  figure.width = kFigureWidth;
  return plot::Draw(figure, plot::SvgPlace::kPage);
}

std::string LeftOut(size_t rows) {
  return rows > kMostRows ? absl::StrCat("The last ", kMostRows, " of ",
                                         CountText(static_cast<int64_t>(rows)), ".")
                          : "";
}

bool HasValues(const plot::Figure& figure) {
  // An empty figure would take the place of one that says something.
  for (const plot::Panel& panel : figure.panels) {
    for (const plot::Series& series : panel.series) {
      if (std::any_of(series.y.begin(), series.y.end(), [](double y) { return std::isfinite(y); }))
        return true;
    }
  }
  return false;
}

// Seconds since 1970; 0: not known. The list of checkpoints comes from the disk, which has no
// times; they are in the events.
double CommittedAt(const JobData& job, const v1::CheckpointInfo& checkpoint) {
  if (checkpoint.has_committed_at()) return SecondsOf(checkpoint.committed_at());
  // The comma keeps step 10 from being taken for step 100.
  const std::string begin = absl::StrCat("step ", checkpoint.step(), ",");
  double at = 0;
  for (const v1::JobEvent& event : job.events) {
    if (event.kind() == "checkpoint_committed" && absl::StartsWith(event.message(), begin)) {
      // A step that was saved by several attempts counts with the last of them.
      at = SecondsOf(event.time());
    }
  }
  return at;
}

// Keeps the head and the last kMostRows.
void Limit(std::vector<std::vector<Cell>>* table) {
  if (table->size() <= kMostRows + 1) return;
  // The newest rows are at the end.
  table->erase(table->begin() + 1, table->end() - static_cast<int64_t>(kMostRows));
}

}  // namespace

void AddCurves(const Subjects& subjects, Page* page) {
  page->Section("Training");
  // Only what the curves need is copied: jobs hold whole histories.
  std::vector<JobData> jobs;  // their steps and labels
  for (const Subject& subject : subjects) {
    JobData job;
    job.label = subject.job->label;
    job.steps = subject.job->steps;
    jobs.push_back(std::move(job));
  }
  const bool steps =
      std::any_of(jobs.begin(), jobs.end(), [](const JobData& job) { return !job.steps.empty(); });
  // A job that is queued has a report, too.
  if (!steps) return page->Paragraph("No steps yet.", "soft");
  std::vector<std::string> figures = {Curves(jobs, {"loss", "grad_norm"}),
                                      Curves(jobs, {"throughput", "learning_rate"})};
  // Other models than classifiers have no scores.
  const bool scores = std::any_of(jobs.begin(), jobs.end(), [](const JobData& job) {
    return std::any_of(job.steps.begin(), job.steps.end(), [](const v1::StepRecord& step) {
      return step.has_validation_accuracy() || step.has_validation_f1();
    });
  });
  if (scores) figures.push_back(Curves(jobs, {"validation_accuracy", "validation_f1"}));
  const auto any_has = [&](bool (v1::ObjectiveFigures::*has)() const) {
    return std::any_of(jobs.begin(), jobs.end(), [has](const JobData& job) {
      return !job.steps.empty() && (job.steps.back().figures().*has)();
    });
  };
  // A batch of kto may lack answers of one kind.
  if (any_has(&v1::ObjectiveFigures::has_chosen_reward) ||
      any_has(&v1::ObjectiveFigures::has_rejected_reward)) {
    figures.push_back(Curves(jobs, {"rewards_chosen", "rewards_rejected"}));
    figures.push_back(Curves(jobs, {"rewards_margin", "rewards_accuracy"}));
  }
  if (any_has(&v1::ObjectiveFigures::has_teacher_divergence)) {
    figures.push_back(Curves(jobs, {"teacher_kl", "cross_entropy"}));
    figures.push_back(Curves(jobs, {"validation_teacher_kl", "validation_cross_entropy"}));
  }
  // Losses that are equal everywhere have no differences to draw.
  const plot::Figure differences = LossDifferences(jobs);
  if (HasValues(differences)) figures.push_back(Narrow(differences));
  figures.push_back(Narrow(StepTimes(jobs)));
  const bool memory = std::any_of(jobs.begin(), jobs.end(), [](const JobData& job) {
    return !job.steps.empty() && job.steps.back().resident_bytes() > 0;
  });
  // Early versions did not report memory, and an empty panel would look like zero.
  if (memory) figures.push_back(Curves(jobs, {"memory"}));
  page->Figures(figures);
}

void AddGoodput(const Subjects& subjects, Page* page) {
  struct Kind {
    const char* name;
    double (v1::Goodput::*seconds)() const;
  };
  constexpr Kind kKinds[] = {{"productive", &v1::Goodput::productive},
                             {"queued", &v1::Goodput::queued},
                             {"starting", &v1::Goodput::starting},
                             {"checkpoint stall", &v1::Goodput::checkpoint_stall},
                             {"lost work", &v1::Goodput::lost_work},
                             {"restarting", &v1::Goodput::restarting},
                             {"fewer ranks than requested", &v1::Goodput::degraded},
                             // All kinds sum to the whole time, so that
                             // the bars end at the same place.
                             {"stopped", &v1::Goodput::stopped}};
  page->Section("Where the time went");
  plot::BarChart chart;
  chart.title = "All time since submission";
  chart.label = chart.title;
  chart.unit = "share";
  chart.shares = true;
  chart.width = 900;
  std::vector<std::vector<Cell>> table = {{{"kind"}}};
  for (const Subject& subject : subjects) {
    chart.categories.push_back(subject.job->label);
    table[0].push_back({subject.job->label, true});
  }
  int colour = 0;
  for (const Kind& kind : kKinds) {
    plot::BarSeries series{kind.name, {}, colour++};
    std::vector<Cell> row = {{kind.name}};
    // A kind that none of the jobs has would only take room in the legend.
    double sum = 0;
    for (const Subject& subject : subjects) {
      const v1::Goodput& goodput = subject.job->status.goodput();
      const double seconds = (goodput.*kind.seconds)();
      // A job that was just submitted has no time to share out.
      const double share = goodput.total() > 0 ? seconds / goodput.total() : 0;
      series.values.push_back(share);
      row.push_back({SecondsText(seconds), true, PercentText(share)});
      sum += seconds;
    }
    if (sum <= 0) continue;
    chart.series.push_back(std::move(series));
    table.push_back(std::move(row));
  }
  if (chart.series.empty()) return page->Paragraph("Not known yet.", "soft");
  std::vector<Cell> whole = {{"total"}};
  for (const Subject& subject : subjects)
    // The total is what the shares are of.
    whole.push_back({SecondsText(subject.job->status.goodput().total()), true});
  table.push_back(std::move(whole));
  page->Figures({plot::Draw(chart, plot::SvgPlace::kPage)});
  page->Table(table);
}

void AddFaults(const Subjects& subjects, Page* page) {
  page->Section("Faults");
  std::vector<std::vector<Cell>> table = {{{"job"},
                                           {"when"},
                                           {"attempt", true},
                                           {"what"},
                                           {"cause"},
                                           {"node"},
                                           {"training resumed after", true},
                                           {"steps lost", true}}};
  size_t count = 0;
  for (const Subject& subject : subjects) {
    for (const Fault& fault : FaultsOf(*subject.job)) {
      // Limit below shortens the table, and the note has to name the whole number.
      ++count;
      table.push_back({{subject.job->label},
                       {TimeText(fault.at)},
                       {absl::StrCat(fault.attempt), true},
                       {fault.kind},
                       {fault.cause},
                       {fault.node},
                       {OrNotKnown(fault.training_again_seconds, SecondsText), true},
                       {OrNotKnown(fault.steps_lost, CountText), true}});
    }
  }
  if (count == 0) return page->Paragraph("None.", "soft");
  Limit(&table);
  page->Table(table);
  for (const Subject& subject : subjects) {
    std::string lines;
    // The output of the rank that failed is what people look for first.
    for (const v1::LogLine& line : subject.job->status.last_lines())
      absl::StrAppend(&lines, line.line(), "\n");
    if (lines.empty()) continue;
    page->Details(absl::StrCat("Last output of rank ", subject.job->status.last_lines(0).rank(),
                               " of ", subject.job->label, ", whose fault ended attempt ",
                               subject.job->status.last_lines(0).attempt()),
                  lines);
  }
  if (count > kMostRows) page->Paragraph(LeftOut(count), "soft");
}

void AddCheckpoints(const Subjects& subjects, Page* page) {
  page->Section("Checkpoints");
  std::vector<std::vector<Cell>> table = {
      {{"job"}, {"step", true}, {"attempt", true}, {"size", true}, {"completed at"}, {"path"}}};
  size_t failed = 0;
  for (const Subject& subject : subjects) {
    for (const v1::CheckpointInfo& checkpoint : subject.job->checkpoints) {
      table.push_back({{subject.job->label},
                       {CountText(checkpoint.step()), true, checkpoint.best() ? "best" : ""},
                       // Checkpoints of early versions did not record their attempt.
                       {checkpoint.attempt() > 0 ? absl::StrCat(checkpoint.attempt()) : "", true},
                       {BytesText(static_cast<double>(checkpoint.bytes())), true},
                       {TimeText(CommittedAt(*subject.job, checkpoint))},
                       {checkpoint.path()}});
    }
    for (const v1::JobEvent& event : subject.job->events)
      // Failed saves leave nothing on the disk: only events know of them.
      failed += event.kind() == "checkpoint_failed" ? 1 : 0;
  }
  const size_t count = table.size() - 1;
  if (count == 0) {
    page->Paragraph("No checkpoints are kept.", "soft");
  } else {
    Limit(&table);
    page->Table(table);
  }
  if (count > kMostRows) page->Paragraph(LeftOut(count), "soft");
  if (failed > 0)
    page->Paragraph(absl::StrCat(failed, " saves failed; `tercio events` shows why."));
}

void AddEnvironment(const Subjects& subjects, Page* page) {
  page->Section("Environment");
  std::vector<std::vector<Cell>> table = {{{"job"},
                                           {"node"},
                                           {"state now"},
                                           {"version"},
                                           {"devices", true},
                                           {"kind"},
                                           {"ranks of the job", true}}};
  for (const Subject& subject : subjects) {
    std::map<std::string, int> ranks;
    // The plan says where ranks were; the cluster says what those nodes are now.
    for (const v1::RankPlacement& rank : subject.job->status.plan().ranks()) ++ranks[rank.node()];
    std::map<std::string, const v1::Node*> known;
    for (const v1::Node& node : subject.job->nodes) known[node.name()] = &node;
    for (const auto& [name, count] : ranks) {
      const auto node = known.find(name);
      const bool here = node != known.end();
      table.push_back({{subject.job->label},
                       {name},
                       // Nodes may have left since the job ran.
                       {here ? node->second->state() : "not in the cluster"},
                       {here ? node->second->version() : kNotKnown},
                       {here ? absl::StrCat(node->second->devices()) : kNotKnown, true},
                       {plan::TextOf(here ? node->second->device_kind()
                                          : subject.job->status.spec().resources().device())},
                       {absl::StrCat(count), true}});
    }
  }
  const JobData& job = *subjects.front().job;
  page->Paragraph(
      absl::StrCat("Coordinator: Tercio ", job.version.empty() ? kNotKnown : job.version,
                   job.commit.empty() ? "" : absl::StrCat(", commit ", job.commit), "."));
  if (table.size() == 1) return page->Paragraph("No node has been chosen yet.", "soft");
  const size_t count = table.size() - 1;
  Limit(&table);
  page->Table(table);
  if (count > kMostRows) page->Paragraph(LeftOut(count), "soft");
}

void AddConfiguration(const Subjects& subjects, Page* page) {
  page->Section("Configuration");
  // One job has nothing to be compared with.
  if (subjects.size() > 1) {
    std::vector<KeyValues> jobs;
    for (const Subject& subject : subjects) {
      jobs.push_back(ConfigurationOf(subject.job->status.spec()));
      // The plan is part of what may explain a difference.
      for (auto& [key, value] : PlanOf(subject.job->status))
        jobs.back().emplace_back("plan: " + key, value);
    }
    std::vector<std::vector<Cell>> table = {{{"key"}}};
    for (const Subject& subject : subjects) table[0].push_back({subject.job->label});
    for (const Difference& difference : DifferencesOf(jobs)) {
      std::vector<Cell> row = {{difference.key}};
      for (const std::string& value : difference.values) row.push_back({value});
      table.push_back(std::move(row));
    }
    if (table.size() == 1) {
      page->Paragraph("No differences.", "soft");
    } else {
      page->Table(table, "keys");
    }
  }
  for (const Subject& subject : subjects) {
    page->Details(absl::StrCat("Complete job file of ", subject.job->label),
                  // The complete file is long, and stands open only where it is the only one.
                  config::EffectiveYaml(subject.job->status.spec()), subjects.size() == 1);
  }
}

}  // namespace tercio::report
