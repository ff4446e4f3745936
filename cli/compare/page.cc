#include "cli/compare/page.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "cli/compare/method_json.h"
#include "cli/plot/scale.h"
#include "cli/report/html.h"
#include "cli/report/sections.h"
#include "cli/report/texts.h"
#include "plan/state_digest.h"

namespace tercio::compare {
namespace {

using plot::ShortText;
using report::BytesText;
using report::Cell;
using report::CountText;
using report::OrNotKnown;
using report::Page;
using report::PercentText;
using report::RatioText;
using report::SecondsText;

// A confusion of more classes is no table that anybody reads.
constexpr size_t kMostClassesShown = 16;

using Value = std::optional<double> Method::*;
using Rows = std::vector<std::vector<Cell>>;

std::string Whole(double value) { return CountText(std::llround(value)); }
std::string Digits(double value) { return plot::NumberText(std::round(value * 1e5) / 1e5); }
std::string ShareOfOne(double value) { return plot::NumberText(std::round(value * 1e4) / 1e4); }

Cell NumberCell(std::string text, std::string note = "") {
  return {std::move(text), true, std::move(note)};
}

// Only the first line of an error fits in a sentence; a memory table follows it.
std::string FirstLine(const std::string& text) {
  return std::string(*absl::StrSplit(text, '\n').begin());
}

std::string LabelOf(const Method& method) {
  return method.kind == MethodKind::kBaseline ? absl::StrCat(method.name, " (baseline)")
                                              : method.name;
}

std::string MoneyText(const Results& results, double cost) {
  const std::string& currency = results.cost.has_value() ? results.cost->currency : "";
  return absl::StrCat(ShortText(cost), currency.empty() ? "" : " ", currency);
}

// The table of all methods, row by row.
class MethodTable {
 public:
  explicit MethodTable(const Results& results) : results_(results) {
    table_ = {{{""}}};
    for (const Method& method : results.methods) table_[0].push_back(NumberCell(LabelOf(method)));
  }

  void Row(const std::string& name, const std::function<Cell(const Method&)>& cell) {
    std::vector<Cell> row = {{name}};
    for (const Method& method : results_.methods) row.push_back(cell(method));
    table_.push_back(std::move(row));
  }

  void Text(const std::string& name, const std::function<std::string(const Method&)>& text) {
    Row(name, [&](const Method& method) {
      const std::string value = text(method);
      return NumberCell(value.empty() ? report::kNotKnown : value);
    });
  }

  void Number(const std::string& name, Value value,
              const std::function<std::string(double)>& text) {
    Row(name, [&](const Method& method) { return NumberCell(OrNotKnown(method.*value, text)); });
  }

  // Left out where no method knows it: it does not apply to the experiment.
  void NumberIfKnown(const std::string& name, Value value,
                     const std::function<std::string(double)>& text) {
    const bool known =
        std::any_of(results_.methods.begin(), results_.methods.end(),
                    [&](const Method& method) { return (method.*value).has_value(); });
    if (known) Number(name, value, text);
  }

  void AddTo(Page* page) { page->Table(table_, "keys"); }

 private:
  const Results& results_;
  Rows table_;
};

std::string DegreesText(const Method& method) {
  if (!method.layout.has_value()) return "";
  return absl::StrCat("tensor ", method.layout->tensor, " × pipeline ", method.layout->pipeline,
                      " × data ", method.layout->data);
}

Cell EpochCell(const Method& method) {
  if (!method.epoch_seconds.empty()) {
    std::vector<double> seconds = method.epoch_seconds;
    std::sort(seconds.begin(), seconds.end());
    return NumberCell(SecondsText(seconds[seconds.size() / 2]));
  }
  // Short jobs have no whole epoch, but the rate says how long one would take.
  if (method.samples_per_epoch.has_value() && method.samples_per_second.has_value() &&
      *method.samples_per_second > 0) {
    return NumberCell(SecondsText(*method.samples_per_epoch / *method.samples_per_second),
                      "by the rate");
  }
  return NumberCell(report::kNotKnown);
}

Cell SpreadCell(const Method& method) {
  if (!method.step_p10.has_value() || !method.step_p90.has_value()) {
    return NumberCell(report::kNotKnown);
  }
  return NumberCell(
      absl::StrCat(SecondsText(*method.step_p10), " to ", SecondsText(*method.step_p90)));
}

// Equal ones mean the same bits of all weights and moments.
std::string StateText(const Method& method) {
  for (auto step = method.history.rbegin(); step != method.history.rend(); ++step) {
    if (step->has_state_digest()) return plan::StateDigestText(step->state_digest());
  }
  return "";
}

Cell LargestCell(const Method& method) {
  if (!method.largest_parameters.has_value()) return NumberCell(report::kNotKnown);
  return NumberCell(absl::StrCat(ShortText(*method.largest_parameters), " parameters"),
                    absl::StrCat(Whole(method.largest_layers.value_or(0)), " layers of ",
                                 Whole(method.largest_hidden.value_or(0))));
}

std::optional<double> ScoreOf(const Json& evaluation,
                              const std::function<std::optional<double>(const Evaluated&)>& score) {
  const std::optional<Evaluated> evaluated = EvaluatedOf(evaluation);
  return evaluated.has_value() ? score(*evaluated) : std::nullopt;
}

// Scores of both held-out sets, of classifiers.
void AddScores(const Results& results, MethodTable* table) {
  struct HeldOut {
    const char* name;
    Json Method::*evaluation;
  };
  constexpr HeldOut kSets[] = {{"validation", &Method::validation}, {"test", &Method::test}};
  struct Score {
    const char* name;
    std::optional<double> (*of)(const Evaluated&);
  };
  constexpr Score kScores[] = {
      {"loss", [](const Evaluated& e) { return e.loss; }},
      {"accuracy", [](const Evaluated& e) { return e.accuracy; }},
      {"F1, macro average", [](const Evaluated& e) { return e.macro.f1; }}};
  for (const HeldOut& set : kSets) {
    for (const Score& score : kScores) {
      const auto value = [&](const Method& method) {
        return ScoreOf(method.*set.evaluation, score.of);
      };
      const bool known =
          std::any_of(results.methods.begin(), results.methods.end(),
                      [&](const Method& method) { return value(method).has_value(); });
      // The loss of validation has a row already.
      if (!known || (&set == &kSets[0] && &score == &kScores[0])) continue;
      table->Row(absl::StrCat(set.name, " ", score.name), [&](const Method& method) {
        return NumberCell(OrNotKnown(value(method), ShareOfOne));
      });
    }
  }
}

void AddMethods(const Results& results, Page* page) {
  page->Section("Methods side by side");
  if (const Method* base = BaseOf(results.methods); base != nullptr) {
    page->Paragraph(absl::StrCat("Speed-up and efficiency are relative to ", base->name,
                                 ". A baseline ran in other software, on what its file says."),
                    "soft");
  }
  MethodTable table(results);
  table.Text("software", [](const Method& m) { return m.software; });
  table.Text("state", [](const Method& m) { return TextOf(m.state); });
  table.Text("layout", DegreesText);
  table.Text("devices", [](const Method& m) {
    return m.layout.has_value() ? absl::StrCat(m.layout->ranks, " × ", m.device) : "";
  });
  table.Text("precision", [](const Method& m) { return m.precision; });
  table.Number("parameters", &Method::parameters, Whole);
  table.Number("global batch", &Method::global_batch, Whole);
  table.NumberIfKnown("epochs", &Method::epochs, Whole);
  table.Number("steps", &Method::steps, Whole);
  table.Number("training time", &Method::seconds, SecondsText);
  table.Row("time per epoch, median", EpochCell);
  table.Number("time per iteration (step), median", &Method::step_median, SecondsText);
  table.Row("10th to 90th percentile", SpreadCell);
  table.Number("time per micro-batch", &Method::micro_batch_seconds, SecondsText);
  table.Number("samples per second", &Method::samples_per_second, ShortText);
  table.Number("tokens per second", &Method::tokens_per_second, ShortText);
  table.Number("speed-up", &Method::speed_up, [](double x) { return RatioText(x, 1); });
  table.Number("efficiency (speed-up per device)", &Method::efficiency, PercentText);
  table.Number("processor cores in use", &Method::cores_used, ShortText);
  table.Number("GPU utilisation", &Method::device_utilization, PercentText);
  table.Number("waiting for other ranks", &Method::wait_share, PercentText);
  table.Number("planned memory, all ranks", &Method::planned_bytes, BytesText);
  table.Number("used memory, all ranks", &Method::used_bytes, BytesText);
  table.Number("resident memory, all processes", &Method::resident_bytes, BytesText);
  table.Number("sent to other ranks in a step, all ranks", &Method::sent_per_step, BytesText);
  table.Number("final loss", &Method::final_loss, Digits);
  table.Number("validation loss", &Method::validation_loss, Digits);
  table.Text("digest of the last state", StateText);
  AddScores(results, &table);
  table.NumberIfKnown("cost", &Method::cost, [&](double cost) { return MoneyText(results, cost); });
  table.Row("largest model of the family that fits", LargestCell);
  table.AddTo(page);
}

std::string SummaryOfMethods(const Results& results) {
  int variants = 0;
  int good = 0;
  int baselines = 0;
  for (const Method& method : results.methods) {
    if (method.kind == MethodKind::kBaseline) {
      ++baselines;
      continue;
    }
    ++variants;
    good += method.state == MethodState::kSucceeded ? 1 : 0;
  }
  return absl::StrCat(
      good, " of ", variants, variants == 1 ? " variant has" : " variants have", " succeeded",
      baselines == 0   ? ""
      : baselines == 1 ? "; 1 baseline stands beside them"
                       : absl::StrCat("; ", baselines, " baselines stand beside them"),
      ".");
}

const Method* Best(const Results& results, Value value) {
  const Method* best = nullptr;
  for (const Method& method : results.methods) {
    if (!(method.*value).has_value()) continue;
    if (best == nullptr || *(method.*value) > *(best->*value)) best = &method;
  }
  return best;
}

void AddSummary(const Results& results, Page* page) {
  page->Paragraph(SummaryOfMethods(results), "lead");
  const Method* base = BaseOf(results.methods);
  const Method* fastest = Best(results, &Method::samples_per_second);
  if (base != nullptr && fastest != nullptr) {
    std::string text =
        absl::StrCat(LabelOf(*fastest),
                     " is the fastest: ", ShortText(*fastest->samples_per_second), " samples/s");
    if (fastest != base && fastest->speed_up.has_value()) {
      absl::StrAppend(&text, ", ", RatioText(*fastest->speed_up, 1), " as fast as ", base->name);
    }
    if (fastest != base && fastest->efficiency.has_value()) {
      absl::StrAppend(&text, ", ", PercentText(*fastest->efficiency), " efficiency");
    }
    page->Paragraph(text + ".", "lead");
  }
  for (const Method& method : results.methods) {
    if (method.state == MethodState::kSucceeded) continue;
    page->Paragraph(absl::StrCat(LabelOf(method), ": ", TextOf(method.state),
                                 method.error.empty() ? "" : ": ", FirstLine(method.error)),
                    "lead");
    // The rest is a table of the memory that was missing, or the reason in full.
    if (FirstLine(method.error) != method.error) {
      page->Details(absl::StrCat("Why ", method.name, " did not succeed"), method.error);
    }
  }
}

void AddDifferent(const Results& results, Page* page) {
  if (results.different.empty()) return;
  page->Section("What the variants train differs");
  page->Paragraph(
      "Their times, losses and scores are not those of one training in several layouts.");
  Rows table = {{{"key"}}};
  for (size_t i = 0; i < results.different.front().values.size(); ++i) {
    table[0].push_back({i < results.methods.size() ? results.methods[i].name : ""});
  }
  for (const config::DifferentKey& different : results.different) {
    std::vector<Cell> row = {{different.key}};
    for (const std::string& value : different.values) {
      row.push_back({value.empty() ? "not set" : value});
    }
    table.push_back(std::move(row));
  }
  page->Table(table, "keys");
}

void AddFigures(const std::string& heading, const std::vector<NamedFigure>& figures,
                const std::string& note, Page* page) {
  page->Section(heading);
  if (figures.empty()) return page->Paragraph("Nothing is known yet.", "soft");
  std::vector<std::string> svgs;
  for (const NamedFigure& figure : figures) svgs.push_back(figure.svg);
  page->Figures(svgs);
  if (!note.empty()) page->Paragraph(note, "soft");
}

// Methods with the same evaluation, which layouts that train one model have, are shown once.
std::vector<std::pair<std::string, Evaluated>> DistinctEvaluations(const Results& results,
                                                                   Json Method::*set) {
  std::vector<std::pair<std::string, Evaluated>> distinct;
  std::map<std::string, size_t> known;
  for (const Method& method : results.methods) {
    const std::optional<Evaluated> evaluated = EvaluatedOf(method.*set);
    if (!evaluated.has_value() || evaluated->classes.empty()) continue;
    const Json& json = method.*set;
    const std::string key = absl::StrCat(json.value("per_class", Json()).dump(),
                                         json.value("confusion", Json()).dump());
    const auto [found, added] = known.emplace(key, distinct.size());
    if (added) {
      distinct.emplace_back(LabelOf(method), *evaluated);
    } else {
      absl::StrAppend(&distinct[found->second].first, ", ", LabelOf(method));
    }
  }
  return distinct;
}

void AddClassScores(const std::string& set,
                    const std::vector<std::pair<std::string, Evaluated>>& distinct, Page* page) {
  Rows table = {{{"method"},
                 {"class"},
                 NumberCell("precision"),
                 NumberCell("recall"),
                 NumberCell("F1"),
                 NumberCell("examples")}};
  for (const auto& [names, evaluated] : distinct) {
    std::vector<Scores> rows = evaluated.classes;
    rows.push_back(evaluated.macro);
    rows.push_back(evaluated.weighted);
    for (size_t i = 0; i < rows.size(); ++i) {
      table.push_back({{i == 0 ? names : ""},
                       {rows[i].label},
                       NumberCell(OrNotKnown(rows[i].precision, ShareOfOne)),
                       NumberCell(OrNotKnown(rows[i].recall, ShareOfOne)),
                       NumberCell(OrNotKnown(rows[i].f1, ShareOfOne)),
                       // Averages are over all of them.
                       NumberCell(rows[i].support.has_value() ? Whole(*rows[i].support) : "")});
    }
  }
  page->Paragraph(absl::StrCat("Classification report on the ", set, " data:"));
  page->Table(table);
}

void AddConfusions(const std::string& set,
                   const std::vector<std::pair<std::string, Evaluated>>& distinct, Page* page) {
  for (const auto& [names, evaluated] : distinct) {
    if (evaluated.confusion.empty() || evaluated.confusion.size() > kMostClassesShown) continue;
    Rows table = {{{"examples of (rows), predicted as (columns)"}}};
    for (const Scores& scores : evaluated.classes) table[0].push_back(NumberCell(scores.label));
    for (size_t label = 0; label < evaluated.confusion.size(); ++label) {
      std::vector<Cell> row = {{evaluated.classes[label].label}};
      for (const int64_t count : evaluated.confusion[label]) {
        row.push_back(NumberCell(CountText(count)));
      }
      table.push_back(std::move(row));
    }
    page->Paragraph(absl::StrCat("Confusion matrix on the ", set, " data: ", names));
    page->Table(table);
  }
}

void AddClassification(const Results& results, Page* page) {
  page->Section("Classification");
  bool any = false;
  for (const auto& [set, evaluation] :
       {std::pair{"test", &Method::test}, std::pair{"validation", &Method::validation}}) {
    const auto distinct = DistinctEvaluations(results, evaluation);
    if (distinct.empty()) continue;
    any = true;
    AddClassScores(set, distinct, page);
    AddConfusions(set, distinct, page);
  }
  if (!any) page->Paragraph("No classifier was evaluated.", "soft");
}

void AddRuns(const Results& results, Page* page) {
  page->Section("Runs");
  Rows table = {{{"variant"},
                 {"job"},
                 {"state"},
                 NumberCell("training time"),
                 NumberCell("iteration, median"),
                 {"error"}}};
  for (const Method& method : results.methods) {
    for (const RunOfMethod& run : method.runs) {
      table.push_back({{method.name},
                       {run.job_id.empty() ? "none" : run.job_id},
                       {TextOf(run.state)},
                       NumberCell(OrNotKnown(run.seconds, SecondsText)),
                       NumberCell(OrNotKnown(run.step_seconds, SecondsText)),
                       {FirstLine(run.error)}});
    }
  }
  page->Table(table);
}

// Without the steps, of which there may be millions.
Json DataOfPage(const Results& results) {
  Json json = ResultsToJson(results);
  for (Json& method : json["methods"]) method.erase("history");
  return json;
}

}  // namespace

std::string ComparePage(const Results& results, const std::vector<report::JobData>& jobs,
                        const std::string& made_by, double made_at) {
  constexpr plot::SvgPlace kPage = plot::SvgPlace::kPage;
  Page page(absl::StrCat("Comparison: ", results.experiment));
  page.Paragraph(absl::StrCat("Created ", report::TimeText(made_at), " by tercio ", made_by, "."),
                 "soft");
  AddSummary(results, &page);
  AddDifferent(results, &page);
  AddMethods(results, &page);
  AddFigures("Speed and cost", SpeedFigures(results, kPage), "", &page);
  AddFigures("Memory and communication", MemoryFigures(results, kPage),
             "Bytes that ranks send since they started, by kind of group; under NCCL those of sums "
             "are computed, for a ring.",
             &page);
  AddFigures("Losses", QualityFigures(results, kPage), "", &page);
  AddClassification(results, &page);
  AddRuns(results, &page);
  report::Subjects subjects;
  for (const report::JobData& job : jobs) subjects.push_back({&job, report::NumbersOf(job)});
  // The rest is what Tercio knows of its own runs.
  if (!subjects.empty()) {
    report::AddPlanned(subjects, &page);
    report::AddPhases(subjects, &page);
    report::AddMemory(subjects, &page);
    report::AddGoodput(subjects, &page);
    report::AddFaults(subjects, &page);
    report::AddEnvironment(subjects, &page);
    report::AddConfiguration(subjects, &page);
  }
  page.Data("tercio-compare",
            DataOfPage(results).dump(2, ' ', false, Json::error_handler_t::replace));
  return page.Finish();
}

std::vector<std::vector<std::string>> ResultRows(const Results& results) {
  std::vector<std::vector<std::string>> rows = {{"METHOD", "STATE", "STEP", "SAMPLES/S", "SPEED-UP",
                                                 "EFFICIENCY", "MEMORY", "LOSS", "VALIDATION"}};
  if (results.cost.has_value()) rows[0].emplace_back("COST");
  const auto shown = [](const std::optional<double>& value,
                        const std::function<std::string(double)>& text) {
    return value.has_value() ? text(*value) : std::string("-");
  };
  for (const Method& method : results.methods) {
    std::vector<std::string> row = {
        LabelOf(method),
        TextOf(method.state),
        shown(method.step_median, SecondsText),
        shown(method.samples_per_second, ShortText),
        shown(method.speed_up, [](double x) { return RatioText(x, 1); }),
        shown(method.efficiency, PercentText),
        shown(method.resident_bytes, BytesText),
        shown(method.final_loss, Digits),
        shown(method.validation_loss, Digits)};
    if (results.cost.has_value()) {
      row.push_back(shown(method.cost, [&](double cost) { return MoneyText(results, cost); }));
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace tercio::compare
