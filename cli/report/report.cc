#include "cli/report/report.h"

#include <cctype>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/report/sections.h"
#include "cli/report/texts.h"

namespace tercio::report {
namespace {

Json PredictedToJson(const v1::Plan& plan) {
  // null says that there was no prediction, which zeros would hide.
  if (!plan.has_predicted()) return nullptr;
  const v1::Prediction& predicted = plan.predicted();
  return {{"step_seconds", predicted.step_seconds()},
          {"tokens_per_second", predicted.tokens_per_second()},
          {"mfu", predicted.mfu()},
          {"memory_bytes_peak", predicted.memory_bytes_peak()},
          {"bubble_ratio", predicted.bubble_ratio()}};
}

Json ComparisonToJson(const JobData& base, const JobData& other) {
  const LossComparison compared = CompareLosses(base, other);
  const Numbers a = NumbersOf(base);
  const Numbers b = NumbersOf(other);
  Json json = {{"base", base.status.id()}, {"job", other.status.id()}};
  // Keys are there even where there is nothing to compare.
  json["speed_up"] = nullptr;
  json["efficiency"] = nullptr;
  if (a.tokens_per_second.has_value() && b.tokens_per_second.has_value()) {
    const double speed_up = *b.tokens_per_second / *a.tokens_per_second;
    json["speed_up"] = speed_up;
    // Efficiency relates the speed to the ranks that were used.
    if (a.ranks > 0 && b.ranks > 0) json["efficiency"] = speed_up * a.ranks / b.ranks;
  }
  json["steps_in_common"] = compared.steps;
  json["steps_with_equal_losses"] = compared.equal_steps;
  json["states_in_common"] = compared.states;
  json["equal_states"] = compared.equal_states;
  json["steps_not_finite"] = compared.not_finite_steps;
  // Without common steps there is no difference.
  json["largest_loss_difference"] =
      compared.steps > 0 ? Json(compared.largest_difference) : Json(nullptr);
  // A difference of zero is at no step.
  json["largest_loss_difference_at"] =
      compared.largest_at > 0 ? Json(compared.largest_at) : Json(nullptr);
  // The point at which each job first reaches the last smoothed loss of the base.
  const auto reached = [](const std::optional<LossComparison::Reached>& at) -> Json {
    if (!at.has_value()) return nullptr;
    return {{"step", at->step}, {"seconds", at->seconds}};
  };
  json["base_reaches_last_loss"] = reached(compared.base_reaches);
  json["job_reaches_last_loss"] = reached(compared.other_reaches);
  return json;
}

}  // namespace

Json ReportData(const std::vector<JobData>& jobs) {
  Json json = {{"jobs", Json::array()}, {"comparisons", Json::array()}};
  for (const JobData& job : jobs) {
    std::string state = v1::JobState_Name(job.status.state()).substr(10);
    for (char& letter : state) letter = static_cast<char>(std::tolower(letter));
    json["jobs"].push_back({{"id", job.status.id()},
                            {"name", job.status.name()},
                            {"state", state},
                            {"numbers", NumbersToJson(NumbersOf(job))},
                            {"predicted", PredictedToJson(job.status.plan())}});
    // Every job is compared with the first one.
    if (&job != &jobs.front()) json["comparisons"].push_back(ComparisonToJson(jobs.front(), job));
  }
  return json;
}

std::string ReportPage(const std::vector<JobData>& jobs, const std::string& made_by,
                       double made_at) {
  // Numbers are computed once, as every section needs them.
  Subjects subjects;
  std::vector<std::string> labels;
  for (const JobData& job : jobs) {
    subjects.push_back({&job, NumbersOf(job)});
    labels.push_back(job.label);
  }
  Page page(absl::StrCat("Training report: ", absl::StrJoin(labels, ", ")));
  page.Paragraph(absl::StrCat("Created ", TimeText(made_at), " by tercio ", made_by, "."), "soft");
  for (const Subject& subject : subjects) page.Paragraph(SummaryOf(subject), "lead");
  for (size_t i = 1; i < subjects.size(); ++i) {
    page.Paragraph(ComparisonOf(subjects.front(), subjects[i]), "lead");
  }
  AddNumbers(subjects, &page);
  // Planned and measured values follow the numbers that they explain.
  AddPlanned(subjects, &page);
  AddCurves(subjects, &page);
  AddClasses(subjects, &page);
  AddPhases(subjects, &page);
  AddMemory(subjects, &page);
  AddGoodput(subjects, &page);
  AddFaults(subjects, &page);
  AddCheckpoints(subjects, &page);
  AddEnvironment(subjects, &page);
  AddConfiguration(subjects, &page);
  // The data is part of the page, so that a program can read the report that a person was sent.
  page.Data("tercio-report", ReportData(jobs).dump(2, ' ', false, Json::error_handler_t::replace));
  return page.Finish();
}

}  // namespace tercio::report
