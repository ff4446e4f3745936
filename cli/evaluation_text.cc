#include "cli/evaluation_text.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/evaluation_json.h"
#include "cli/text.h"
#include "plan/epochs.h"
#include "plan/quality.h"

namespace tercio::cli {
namespace {

std::string ScoreText(double score) { return absl::StrFormat("%.4f", score); }

std::vector<std::string> RowOf(const std::string& name, const plan::ClassScores& scores) {
  return {name, ScoreText(scores.precision), ScoreText(scores.recall), ScoreText(scores.f1),
          absl::StrCat(scores.support)};
}

}  // namespace

std::string EvaluationText(const v1::Evaluation& evaluation) {
  std::string text = absl::StrFormat("step %d: loss %.4f", evaluation.step(), evaluation.loss());
  if (!plan::IsConfusion(evaluation.confusion())) return text;
  const plan::Quality quality = plan::QualityOf(evaluation.confusion());
  absl::StrAppend(&text, ", accuracy ", ScoreText(quality.accuracy), ", f1 ",
                  ScoreText(quality.overall.f1));
  return text;
}

std::string ClassTable(const v1::Evaluation& evaluation, const v1::ModelSpec& model) {
  if (!plan::IsConfusion(evaluation.confusion())) return "";
  const plan::Quality quality = plan::QualityOf(evaluation.confusion());
  std::vector<std::vector<std::string>> rows = {{"CLASS", "PRECISION", "RECALL", "F1", "SUPPORT"}};
  for (size_t label = 0; label < quality.classes.size(); ++label) {
    // Names of classes are the job's, and may hold anything.
    rows.push_back(
        RowOf(ForTerminal(LabelText(model, static_cast<int>(label))), quality.classes[label]));
  }
  rows.push_back(RowOf("(macro average)", quality.macro));
  rows.push_back(RowOf("(weighted average)", quality.weighted));
  return Table(rows);
}

bool KnowsSteps(const v1::JobStatus& job) {
  return job.steps() > 0 || plan::KnowsSteps(job.spec().training());
}

std::string StepsText(const v1::JobStatus& job) {
  if (KnowsSteps(job)) return absl::StrCat(job.step(), " of ", job.steps());
  const int64_t epochs = job.spec().training().epochs();
  return absl::StrCat(job.step(), ", ", epochs, epochs == 1 ? " epoch" : " epochs");
}

}  // namespace tercio::cli
