#include "cli/report/diff.h"

#include <cmath>
#include <optional>

#include "absl/strings/str_cat.h"
#include "cli/plot/scale.h"
#include "cli/report/configuration.h"
#include "cli/report/report.h"
#include "cli/report/texts.h"

namespace tercio::report {
namespace {

// A pointer to the text is also the kind of the value.
struct Result {
  const char* key;   // in JSON
  const char* name;  // for people
  std::optional<double> a;
  std::optional<double> b;
  std::string (*text)(double);
};

// Losses are shown with all digits, since they are compared to the last bit.
std::string Exact(double value) { return Json(value).dump(); }
std::string Whole(double value) { return CountText(static_cast<int64_t>(value)); }

std::optional<double> Median(const Numbers& numbers) {
  if (!numbers.step_seconds.has_value()) return std::nullopt;
  return numbers.step_seconds->median;
}

template <typename T>
std::optional<double> Value(const std::optional<T>& value) {
  if (!value.has_value()) return std::nullopt;
  return static_cast<double>(*value);
}

std::vector<Result> ResultsOf(const Numbers& a, const Numbers& b) {
  // Counts are never unknown.
  const auto of = [](int64_t value) { return std::optional<double>(static_cast<double>(value)); };
  return {{"steps", "steps", of(a.steps), of(b.steps), Whole},
          {"tokens", "tokens", of(a.tokens), of(b.tokens), Whole},
          {"final_loss", "final loss", a.final_loss, b.final_loss, Exact},
          {"validation_loss", "validation loss", a.validation_loss, b.validation_loss, Exact},
          {"validation_accuracy", "validation accuracy", a.validation_accuracy,
           b.validation_accuracy, Exact},
          {"validation_f1", "validation F1", a.validation_f1, b.validation_f1, Exact},
          {"test_loss", "test loss", a.test_loss, b.test_loss, Exact},
          {"test_accuracy", "test accuracy", a.test_accuracy, b.test_accuracy, Exact},
          {"test_f1", "test F1", a.test_f1, b.test_f1, Exact},
          // The median stands for all steps, as in the report.
          {"step_seconds", "step, median", Median(a), Median(b), SecondsText},
          {"tokens_per_second", "tokens per second", a.tokens_per_second, b.tokens_per_second,
           plot::ShortText},
          {"mfu", "MFU", a.mfu, b.mfu, PercentText},
          {"wait_share", "waiting for other ranks", a.wait_share, b.wait_share, PercentText},
          {"cores_used", "processor cores", a.cores_used, b.cores_used, plot::ShortText},
          {"peak_bytes_most", "peak memory per rank", Value(a.peak_bytes_most),
           Value(b.peak_bytes_most), BytesText},
          {"peak_bytes_total", "peak memory, all ranks", Value(a.peak_bytes_total),
           Value(b.peak_bytes_total), BytesText},
          {"communication_bytes_per_step", "sent to other ranks in a step",
           a.communication_bytes_per_step, b.communication_bytes_per_step, BytesText},
          {"goodput", "goodput", a.goodput, b.goodput, PercentText},
          {"restarts", "restarts", of(a.restarts), of(b.restarts), Whole},
          {"lost_steps", "steps repeated", of(a.lost_steps), of(b.lost_steps), Whole}};
}

// Predictions are part of the plan.
std::vector<Result> PredictedOf(const v1::Plan& a, const v1::Plan& b) {
  // A plan without a prediction would otherwise show zeros.
  const auto of = [](const v1::Plan& plan, double value) {
    return plan.has_predicted() ? std::optional<double>(value) : std::nullopt;
  };
  const v1::Prediction& pa = a.predicted();
  const v1::Prediction& pb = b.predicted();
  return {{"step_seconds", "predicted step", of(a, pa.step_seconds()), of(b, pb.step_seconds()),
           SecondsText},
          {"tokens_per_second", "predicted tokens per second", of(a, pa.tokens_per_second()),
           of(b, pb.tokens_per_second()), plot::ShortText},
          {"mfu", "predicted MFU", of(a, pa.mfu()), of(b, pb.mfu()), PercentText},
          {"memory_bytes_peak", "predicted peak memory",
           of(a, static_cast<double>(pa.memory_bytes_peak())),
           of(b, static_cast<double>(pb.memory_bytes_peak())), BytesText},
          {"bubble_ratio", "predicted bubble", of(a, pa.bubble_ratio()), of(b, pb.bubble_ratio()),
           PercentText}};
}

Json ToJson(const Result& result, const std::optional<double>& value) {
  if (!value.has_value()) return nullptr;
  // Counts stay whole numbers in JSON.
  return result.text == Whole ? Json(static_cast<int64_t>(*value)) : Json(*value);
}

Json ToJson(const std::vector<Result>& results) {
  Json json = Json::object();
  for (const Result& result : results) {
    // Nothing can be a multiple of zero.
    const bool ratio = result.a.has_value() && result.b.has_value() && *result.a != 0;
    json[result.key] = {{"a", ToJson(result, result.a)},
                        {"b", ToJson(result, result.b)},
                        {"ratio", ratio ? Json(*result.b / *result.a) : Json(nullptr)}};
  }
  return json;
}

Json ToJson(const std::vector<Difference>& differences) {
  Json json = Json::object();
  for (const Difference& difference : differences) {
    const auto value = [&](size_t i) {
      // An empty value means that the job does not have the key.
      return difference.values[i].empty() ? Json(nullptr) : Json(difference.values[i]);
    };
    json[difference.key] = {{"a", value(0)}, {"b", value(1)}};
  }
  return json;
}

void AddRows(const std::vector<Result>& results, std::vector<std::vector<std::string>>* rows) {
  for (const Result& result : results) {
    // Programs get all keys, people only what at least one job has.
    if (!result.a.has_value() && !result.b.has_value()) continue;
    const bool both = result.a.has_value() && result.b.has_value();
    // Two shares are compared by looking at them.
    const bool share = result.text == PercentText;  // needs no ratio
    rows->push_back({absl::StrCat("  ", result.name), OrNotKnown(result.a, result.text),
                     OrNotKnown(result.b, result.text),
                     both && !share ? RatioText(*result.b, *result.a) : ""});
  }
}

void AddRows(const std::vector<Difference>& differences,
             std::vector<std::vector<std::string>>* rows) {
  for (const Difference& difference : differences) {
    rows->push_back({absl::StrCat("  ", difference.key),
                     difference.values[0].empty() ? "-" : difference.values[0],
                     difference.values[1].empty() ? "-" : difference.values[1], ""});
  }
  // An empty section would leave open whether anything was compared.
  if (differences.empty()) rows->push_back({"  the same"});
}

}  // namespace

Json DiffToJson(const JobData& a, const JobData& b) {
  Json json = {{"a", {{"id", a.status.id()}, {"name", a.status.name()}}},
               {"b", {{"id", b.status.id()}, {"name", b.status.name()}}}};
  json["configuration"] =
      ToJson(DifferencesOf({ConfigurationOf(a.status.spec()), ConfigurationOf(b.status.spec())}));
  json["plan"] = ToJson(DifferencesOf({PlanOf(a.status), PlanOf(b.status)}));
  json["predicted"] = ToJson(PredictedOf(a.status.plan(), b.status.plan()));
  json["results"] = ToJson(ResultsOf(NumbersOf(a), NumbersOf(b)));
  // The comparison is the one of the report, so that both say the same.
  json["comparison"] = ReportData({a, b})["comparisons"][0];
  return json;
}

std::vector<std::vector<std::string>> DiffRows(const JobData& a, const JobData& b) {
  // The ratio is that of the second job to the first.
  std::vector<std::vector<std::string>> rows = {{"", a.label, b.label, "RATIO"}};
  rows.push_back({"CONFIGURATION"});
  AddRows(DifferencesOf({ConfigurationOf(a.status.spec()), ConfigurationOf(b.status.spec())}),
          &rows);
  rows.push_back({"PLAN"});
  AddRows(DifferencesOf({PlanOf(a.status), PlanOf(b.status)}), &rows);
  AddRows(PredictedOf(a.status.plan(), b.status.plan()), &rows);
  rows.push_back({"RESULTS"});
  AddRows(ResultsOf(NumbersOf(a), NumbersOf(b)), &rows);
  const LossComparison compared = CompareLosses(a, b);
  rows.push_back({"LOSSES"});
  rows.push_back({"  steps in common", CountText(compared.steps)});
  rows.push_back({"  bit-identical", CountText(compared.equal_steps)});
  if (compared.states > 0) {
    rows.push_back({"  digests of the state in common", CountText(compared.states)});
    rows.push_back({"  equal", CountText(compared.equal_states)});
  }
  // Without a difference there is no step to name.
  if (compared.largest_at > 0) {
    rows.push_back(
        {"  largest difference", absl::StrCat(plot::ShortText(compared.largest_difference),
                                              " at step ", compared.largest_at)});
  }
  if (compared.not_finite_steps > 0) {
    rows.push_back({"  one of the two not finite", CountText(compared.not_finite_steps)});
  }
  const auto reached = [](const std::optional<LossComparison::Reached>& at) {
    return at.has_value() ? absl::StrCat("at step ", at->step, ", after ", SecondsText(at->seconds))
                          : "never";
  };
  // A run whose last loss is not finite has reached nothing.
  if (compared.base_reaches.has_value()) {
    rows.push_back({absl::StrCat("  reaches the final loss of ", a.label),
                    reached(compared.base_reaches), reached(compared.other_reaches),
                    compared.other_reaches.has_value()
                        ? RatioText(compared.other_reaches->seconds, compared.base_reaches->seconds)
                        : ""});
  }
  return rows;
}

}  // namespace tercio::report
