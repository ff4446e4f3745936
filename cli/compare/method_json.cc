#include "cli/compare/method_json.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/format.h"

namespace tercio::compare {
namespace {

// A page of more methods is no comparison any more.
constexpr size_t kMostMethodsOfFile = 64;
constexpr size_t kMostClasses = 4096;
constexpr int kMostDegree = 1 << 20;

// A number at its place in the JSON of a method; those with a group are one level deeper.
struct NumberPlace {
  const char* group;  // null: none
  const char* key;
  std::optional<double> Method::*value;
  bool whole = false;
};

constexpr NumberPlace kSizes[] = {{nullptr, "parameters", &Method::parameters, true},
                                  {nullptr, "global_batch", &Method::global_batch, true},
                                  {nullptr, "epochs", &Method::epochs, true},
                                  {nullptr, "steps", &Method::steps, true},
                                  {nullptr, "samples_per_epoch", &Method::samples_per_epoch, true}};
constexpr NumberPlace kTimes[] = {{nullptr, "seconds", &Method::seconds},
                                  {"step_seconds", "median", &Method::step_median},
                                  {"step_seconds", "p10", &Method::step_p10},
                                  {"step_seconds", "p90", &Method::step_p90},
                                  {nullptr, "micro_batch_seconds", &Method::micro_batch_seconds},
                                  {nullptr, "samples_per_second", &Method::samples_per_second},
                                  {nullptr, "tokens_per_second", &Method::tokens_per_second},
                                  {nullptr, "speed_up", &Method::speed_up},
                                  {nullptr, "efficiency", &Method::efficiency},
                                  {nullptr, "cores_used", &Method::cores_used},
                                  {nullptr, "device_utilization", &Method::device_utilization},
                                  {"memory", "planned_bytes", &Method::planned_bytes, true},
                                  {"memory", "used_bytes", &Method::used_bytes, true},
                                  {"memory", "resident_bytes", &Method::resident_bytes, true}};
constexpr NumberPlace kSent[] = {{"communication_bytes", "tensor", &Method::sent_tensor, true},
                                 {"communication_bytes", "pipeline", &Method::sent_pipeline, true},
                                 {"communication_bytes", "data", &Method::sent_data, true},
                                 {"communication_bytes", "world", &Method::sent_world, true}};
constexpr NumberPlace kResults[] = {
    {nullptr, "communication_bytes_per_step", &Method::sent_per_step},
    {nullptr, "wait_share", &Method::wait_share},
    {nullptr, "final_loss", &Method::final_loss},
    {nullptr, "validation_loss", &Method::validation_loss}};
constexpr NumberPlace kLargest[] = {
    {"largest_model", "layers", &Method::largest_layers, true},
    {"largest_model", "hidden", &Method::largest_hidden, true},
    {"largest_model", "parameters", &Method::largest_parameters, true},
    {"largest_model", "memory_bytes", &Method::largest_bytes, true}};
constexpr NumberPlace kCost[] = {{nullptr, "cost", &Method::cost}};

Json NumberOrNull(const std::optional<double>& value, bool whole = false) {
  if (!value.has_value() || !std::isfinite(*value)) return nullptr;
  // A median of two counts may lie between them.
  return whole ? Json(static_cast<int64_t>(std::llround(*value))) : Json(*value);
}

template <size_t kCount>
void Write(const NumberPlace (&places)[kCount], const Method& method, Json* json) {
  for (const NumberPlace& place : places) {
    const Json value = NumberOrNull(method.*place.value, place.whole);
    if (place.group == nullptr) {
      (*json)[place.key] = value;
    } else {
      (*json)[place.group][place.key] = value;
    }
  }
}

// A group of which nothing is known is null.
template <size_t kCount>
void WriteIfKnown(const NumberPlace (&places)[kCount], const Method& method, Json* json) {
  const bool known =
      std::any_of(std::begin(places), std::end(places),
                  [&](const NumberPlace& place) { return (method.*place.value).has_value(); });
  if (known) return Write(places, method, json);
  (*json)[places[0].group] = nullptr;
}

Json TextOrNull(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

Json LayoutOrNull(const std::optional<Degrees>& layout) {
  if (!layout.has_value()) return nullptr;
  return {{"tensor", layout->tensor},
          {"pipeline", layout->pipeline},
          {"data", layout->data},
          {"ranks", layout->ranks}};
}

// Reads the parts of a method, and remembers what is wrong with them.
class MethodReader {
 public:
  MethodReader(std::string file, std::vector<std::string>* faults)
      : file_(std::move(file)), faults_(*faults) {}

  void Fault(const std::string& key, const std::string& what) {
    std::string line = absl::StrCat(file_, ": ", key, ": ", what);
    // Several values of a group have the fault of the group.
    if (faults_.empty() || faults_.back() != line) faults_.push_back(std::move(line));
  }

  // A missing key reads as null.
  static const Json& At(const Json& object, const char* key) {
    static const Json* const none = new Json(nullptr);
    if (!object.is_object()) return *none;
    const auto found = object.find(key);
    return found == object.end() ? *none : *found;
  }

  std::optional<double> Number(const Json& value, const std::string& key) {
    if (value.is_null()) return std::nullopt;
    if (value.is_number()) return value.get<double>();
    Fault(key, "expected a number or null");
    return std::nullopt;
  }

  std::string Text(const Json& value, const std::string& key) {
    if (value.is_null()) return "";
    if (value.is_string()) return value.get<std::string>();
    Fault(key, "expected text or null");
    return "";
  }

  template <size_t kCount>
  void Numbers(const NumberPlace (&places)[kCount], const Json& json, const std::string& path,
               Method* method) {
    for (const NumberPlace& place : places) {
      const Json& from = place.group == nullptr ? json : At(json, place.group);
      const std::string key = absl::StrCat(
          path, ".", place.group == nullptr ? "" : absl::StrCat(place.group, "."), place.key);
      if (!from.is_object() && !from.is_null()) {
        Fault(absl::StrCat(path, ".", place.group), "expected an object or null");
        continue;
      }
      method->*place.value = Number(At(from, place.key), key);
    }
  }

  std::optional<Degrees> Layout(const Json& json, const std::string& path) {
    if (json.is_null()) return std::nullopt;
    const auto degree = [&](const char* key) {
      const Json& value = At(json, key);
      if (value.is_null()) return 1;
      if (value.is_number_integer() && value.get<int64_t>() >= 1 &&
          value.get<int64_t>() <= kMostDegree) {
        return static_cast<int>(value.get<int64_t>());
      }
      Fault(absl::StrCat(path, ".", key), "expected a whole number of at least 1");
      return 1;
    };
    if (!json.is_object()) Fault(path, "expected an object or null");
    return Degrees{degree("tensor"), degree("pipeline"), degree("data"), degree("ranks")};
  }

  MethodState State(const Json& json, const std::string& path) {
    for (const MethodState state : {MethodState::kSucceeded, MethodState::kFailed,
                                    MethodState::kCancelled, MethodState::kNotRun}) {
      if (json.is_string() && json.get<std::string>() == TextOf(state)) return state;
    }
    Fault(path, "expected \"succeeded\", \"failed\", \"cancelled\" or \"not run\"");
    return MethodState::kFailed;
  }

  std::vector<double> List(const Json& json, const std::string& path) {
    std::vector<double> numbers;
    if (json.is_null()) return numbers;
    const bool fine = json.is_array() && std::all_of(json.begin(), json.end(),
                                                     [](const Json& x) { return x.is_number(); });
    if (fine) return json.get<std::vector<double>>();
    Fault(path, "expected a list of numbers");
    return numbers;
  }

  std::vector<v1::StepRecord> History(const Json& json, const std::string& path) {
    std::vector<v1::StepRecord> steps;
    if (json.is_null()) return steps;
    if (!json.is_array()) {
      Fault(path, "expected a list of steps");
      return steps;
    }
    for (size_t i = 0; i < json.size(); ++i) {
      std::optional<v1::StepRecord> step = cli::StepFromJson(json[i]);
      // Curves need an order, and one fault of a list says enough.
      if (!step.has_value() || (!steps.empty() && step->step() <= steps.back().step())) {
        Fault(absl::StrCat(path, "[", i, "]"),
              "expected an object with a step above 0, and above that of the one before");
        return {};
      }
      steps.push_back(*std::move(step));
    }
    return steps;
  }

  Scores ReadScores(const Json& json, const std::string& label, const std::string& path) {
    if (!json.is_object() && !json.is_null()) Fault(path, "expected an object or null");
    Scores scores;
    scores.label = label;
    scores.precision = Number(At(json, "precision"), absl::StrCat(path, ".precision"));
    scores.recall = Number(At(json, "recall"), absl::StrCat(path, ".recall"));
    scores.f1 = Number(At(json, "f1"), absl::StrCat(path, ".f1"));
    scores.support = Number(At(json, "support"), absl::StrCat(path, ".support"));
    return scores;
  }

  std::vector<std::vector<int64_t>> Confusion(const Json& json, size_t classes,
                                              const std::string& path) {
    std::vector<std::vector<int64_t>> confusion;
    if (json.is_null()) return confusion;
    const auto row = [classes](const Json& counts) {
      return counts.is_array() && counts.size() == classes &&
             std::all_of(counts.begin(), counts.end(), [](const Json& count) {
               return count.is_number_integer() && count.get<int64_t>() >= 0;
             });
    };
    if (json.is_array() && json.size() == classes && std::all_of(json.begin(), json.end(), row)) {
      return json.get<std::vector<std::vector<int64_t>>>();
    }
    Fault(path, "expected a row of counts for each class of per_class");
    return confusion;
  }

  std::optional<Evaluated> Evaluation(const Json& json, const std::string& path) {
    if (json.is_null()) return std::nullopt;
    if (!json.is_object()) {
      Fault(path, "expected an object or null");
      return std::nullopt;
    }
    Evaluated evaluated;
    evaluated.step = Number(At(json, "step"), absl::StrCat(path, ".step"));
    evaluated.loss = Number(At(json, "loss"), absl::StrCat(path, ".loss"));
    evaluated.accuracy = Number(At(json, "accuracy"), absl::StrCat(path, ".accuracy"));
    const Json& classes = At(json, "per_class");
    if ((!classes.is_object() && !classes.is_null()) || classes.size() > kMostClasses) {
      Fault(absl::StrCat(path, ".per_class"),
            absl::StrCat("expected an object with at most ", kMostClasses, " classes, or null"));
      return evaluated;
    }
    for (const auto& [label, scores] : classes.items()) {
      evaluated.classes.push_back(
          ReadScores(scores, label, absl::StrCat(path, ".per_class.", label)));
    }
    evaluated.macro = ReadScores(At(json, "macro"), "macro average", path + ".macro");
    evaluated.weighted = ReadScores(At(json, "weighted"), "weighted average", path + ".weighted");
    evaluated.confusion =
        Confusion(At(json, "confusion"), evaluated.classes.size(), path + ".confusion");
    return evaluated;
  }

 private:
  const std::string file_;
  std::vector<std::string>& faults_;
};

Method ReadMethod(const Json& json, const std::string& path, MethodReader& reader) {
  const auto at = [&](const char* key) -> const Json& { return MethodReader::At(json, key); };
  const auto name_of = [&](const char* key) { return absl::StrCat(path, ".", key); };
  Method method;
  method.kind = MethodKind::kBaseline;
  method.name = reader.Text(at("name"), name_of("name"));
  method.software = reader.Text(at("software"), name_of("software"));
  method.state = reader.State(at("state"), name_of("state"));
  method.error = reader.Text(at("error"), name_of("error"));
  method.layout = reader.Layout(at("layout"), name_of("layout"));
  method.device = reader.Text(at("device"), name_of("device"));
  method.precision = reader.Text(at("precision"), name_of("precision"));
  reader.Numbers(kSizes, json, path, &method);
  reader.Numbers(kTimes, json, path, &method);
  reader.Numbers(kSent, json, path, &method);
  reader.Numbers(kResults, json, path, &method);
  reader.Numbers(kCost, json, path, &method);
  reader.Numbers(kLargest, json, path, &method);
  method.epoch_seconds = reader.List(at("epoch_seconds"), name_of("epoch_seconds"));
  method.history = reader.History(at("history"), name_of("history"));
  const Json& evaluation = at("evaluation");
  if (!evaluation.is_object() && !evaluation.is_null()) {
    reader.Fault(name_of("evaluation"), "expected an object or null");
  }
  method.validation = MethodReader::At(evaluation, "validation");
  method.test = MethodReader::At(evaluation, "test");
  // They are written as they were read, once their form is known.
  reader.Evaluation(method.validation, name_of("evaluation.validation"));
  reader.Evaluation(method.test, name_of("evaluation.test"));
  method.best_step =
      reader.Number(MethodReader::At(evaluation, "best_step"), name_of("evaluation.best_step"));
  return method;
}

// What the history says, where the file does not say it itself.
void AddLosses(Method* method) {
  for (const v1::StepRecord& step : method->history) {
    if (step.has_validation_loss()) method->validation_loss = step.validation_loss();
    if (std::isfinite(step.loss())) method->final_loss = step.loss();
  }
}

}  // namespace

Json MethodToJson(const Method& method) {
  Json json = {{"name", method.name},
               {"kind", method.kind == MethodKind::kBaseline ? "baseline" : "tercio"},
               {"software", TextOrNull(method.software)},
               {"state", TextOf(method.state)},
               {"error", TextOrNull(method.error)},
               {"job_id", TextOrNull(method.job_id)},
               {"layout", LayoutOrNull(method.layout)},
               {"device", TextOrNull(method.device)},
               {"precision", TextOrNull(method.precision)}};
  Write(kSizes, method, &json);
  json["epoch_seconds"] = method.epoch_seconds;
  Write(kTimes, method, &json);
  WriteIfKnown(kSent, method, &json);
  Write(kResults, method, &json);
  json["evaluation"] = {{"validation", method.validation},
                        {"test", method.test},
                        {"best_step", NumberOrNull(method.best_step, true)}};
  Write(kCost, method, &json);
  WriteIfKnown(kLargest, method, &json);
  json["runs"] = Json::array();
  for (const RunOfMethod& run : method.runs) {
    json["runs"].push_back({{"job_id", TextOrNull(run.job_id)},
                            {"state", TextOf(run.state)},
                            {"error", TextOrNull(run.error)},
                            {"seconds", NumberOrNull(run.seconds)},
                            {"step_seconds", NumberOrNull(run.step_seconds)}});
  }
  json["history"] = Json::array();
  for (const v1::StepRecord& step : method.history) {
    json["history"].push_back(cli::StepToJson(step));
  }
  return json;
}

absl::StatusOr<std::vector<Method>> ParseMethods(const std::string& text, const std::string& file) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded() || !json.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(file,
                     ": not a JSON object (NaN and Infinity are none of its numbers: write "
                     "null)"));
  }
  if (MethodReader::At(json, "format") != Json(kResultsFormat)) {
    return absl::InvalidArgumentError(
        absl::StrCat(file, ": format: expected \"", kResultsFormat, "\""));
  }
  const Json& list = MethodReader::At(json, "methods");
  if (!list.is_array() || list.empty() || list.size() > kMostMethodsOfFile) {
    return absl::InvalidArgumentError(
        absl::StrCat(file, ": methods: expected a list of 1 to ", kMostMethodsOfFile, " methods"));
  }
  std::vector<std::string> faults;
  MethodReader reader(file, &faults);
  std::vector<Method> methods;
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string path = absl::StrCat("methods[", i, "]");
    if (!list[i].is_object()) {
      reader.Fault(path, "expected an object");
      continue;
    }
    methods.push_back(ReadMethod(list[i], path, reader));
    AddLosses(&methods.back());
  }
  if (!faults.empty()) return absl::InvalidArgumentError(absl::StrJoin(faults, "\n"));
  return methods;
}

std::optional<Evaluated> EvaluatedOf(const Json& evaluation) {
  std::vector<std::string> faults;
  return MethodReader("", &faults).Evaluation(evaluation, "evaluation");
}

}  // namespace tercio::compare
