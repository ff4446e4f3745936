// The classification report: scores of each class, and how often one was taken for another.
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/report/sections.h"
#include "cli/report/texts.h"
#include "plan/quality.h"

namespace tercio::report {
namespace {

// A wider table would not fit on a page; `get -o json` has the whole of it.
constexpr int kMostColumns = 20;

// The test data's evaluation, which is that of the model that the job ends with; before the end the
// last one of the validation data.
const v1::Evaluation& EvaluationOf(const v1::JobStatus& status) {
  return status.has_test() ? status.test() : status.validation();
}

std::string ClassName(const v1::ModelSpec& model, int label) {
  return label < model.label_names_size() ? model.label_names(label) : absl::StrCat(label);
}

std::vector<Cell> ScoreRow(std::string name, const plan::ClassScores& scores) {
  const auto number = [](double score) { return Cell{absl::StrFormat("%.4f", score), true}; };
  return {{std::move(name)},
          number(scores.precision),
          number(scores.recall),
          number(scores.f1),
          {CountText(scores.support), true}};
}

void AddScores(const v1::Evaluation& evaluation, const v1::ModelSpec& model, Page* page) {
  const plan::Quality quality = plan::QualityOf(evaluation.confusion());
  std::vector<std::vector<Cell>> table = {
      {{"class"}, {"precision", true}, {"recall", true}, {"F1", true}, {"examples", true}}};
  for (size_t label = 0; label < quality.classes.size(); ++label) {
    table.push_back(ScoreRow(ClassName(model, static_cast<int>(label)), quality.classes[label]));
  }
  table.push_back(ScoreRow("mean over classes (macro)", quality.macro));
  table.push_back(ScoreRow("weighted by examples", quality.weighted));
  page->Table(table);
}

void AddConfusion(const v1::Confusion& confusion, const v1::ModelSpec& model, Page* page) {
  const int classes = confusion.classes();
  if (classes > kMostColumns) {
    return page->Paragraph(
        absl::StrCat("The confusion of ", classes, " classes is in `tercio get -o json`."), "soft");
  }
  std::vector<std::vector<Cell>> table = {{{"class \u2193, predicted as \u2192"}}};
  for (int predicted = 0; predicted < classes; ++predicted) {
    table[0].push_back({ClassName(model, predicted), true});
  }
  for (int label = 0; label < classes; ++label) {
    std::vector<Cell> row = {{ClassName(model, label)}};
    for (int predicted = 0; predicted < classes; ++predicted) {
      row.push_back({CountText(confusion.counts(label * classes + predicted)), true});
    }
    table.push_back(std::move(row));
  }
  page->Table(table);
}

}  // namespace

void AddClasses(const Subjects& subjects, Page* page) {
  bool begun = false;
  for (const Subject& subject : subjects) {
    const v1::JobStatus& status = subject.job->status;
    const v1::Evaluation& evaluation = EvaluationOf(status);
    // A report may be made of what a coordinator of another version has sent.
    if (!plan::IsConfusion(evaluation.confusion())) continue;
    if (!begun) page->Section("Classification");
    begun = true;
    const plan::Quality quality = plan::QualityOf(evaluation.confusion());
    page->Paragraph(absl::StrCat(
        subject.job->label, ": ", status.has_test() ? "test data" : "validation data",
        ", with the weights of step ", CountText(evaluation.step()),
        evaluation.step() == status.best_step() && status.best_step() > 0 ? ", the best one" : "",
        ". Accuracy ", absl::StrFormat("%.4f", quality.accuracy), " over ",
        CountText(quality.weighted.support), " examples.",
        evaluation.problem().empty() ? "" : absl::StrCat(" ", evaluation.problem(), ".")));
    AddScores(evaluation, status.spec().model(), page);
    AddConfusion(evaluation.confusion(), status.spec().model(), page);
  }
}

}  // namespace tercio::report
