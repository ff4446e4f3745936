#include "cli/compare/results.h"

#include <map>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "cli/compare/method_json.h"
#include "common/version.h"

namespace tercio::compare {
namespace {

// Names and texts of a job may hold bytes that are not UTF-8.
std::string Dumped(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// The leaves of a method's JSON, by dotted keys, in their order.
using Fields = std::vector<std::pair<std::string, Json>>;

void Flatten(const Json& json, const std::string& path, Fields* fields) {
  if (!json.is_object()) {
    fields->emplace_back(path, json);
    return;
  }
  for (const auto& [key, value] : json.items()) {
    // The steps have files of their own: `tercio history`.
    if (path.empty() && key == "history") continue;
    Flatten(value, path.empty() ? key : absl::StrCat(path, ".", key), fields);
  }
}

std::string FieldText(const Json& value) {
  if (value.is_null()) return "";
  return value.is_string() ? value.get<std::string>() : Dumped(value);
}

std::string Quoted(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  return absl::StrCat("\"", absl::StrReplaceAll(text, {{"\"", "\"\""}}), "\"");
}

std::string CsvLine(const std::vector<std::string>& fields) {
  std::vector<std::string> quoted;
  quoted.reserve(fields.size());
  for (const std::string& field : fields) quoted.push_back(Quoted(field));
  return absl::StrCat(absl::StrJoin(quoted, ","), "\r\n");
}

Json DifferentToJson(const Results& results) {
  Json json = Json::object();
  for (const config::DifferentKey& different : results.different) {
    json[different.key] = Json::object();
    // Variants come first among the methods.
    for (size_t i = 0; i < different.values.size() && i < results.methods.size(); ++i) {
      json[different.key][results.methods[i].name] = different.values[i];
    }
  }
  return json;
}

}  // namespace

Results ResultsOf(const config::Experiment& experiment, const std::vector<Method>& variants,
                  const std::vector<Method>& baselines) {
  Results results{experiment.name, variants, experiment.cost, experiment.different};
  results.methods.insert(results.methods.end(), baselines.begin(), baselines.end());
  CompareSpeeds(&results.methods);
  if (results.cost.has_value()) AddCosts(results.cost->per_device_hour, &results.methods);
  return results;
}

Json ResultsToJson(const Results& results) {
  Json json = {{"format", kResultsFormat},
               {"experiment", results.experiment},
               {"made_by", absl::StrCat("tercio ", kVersion)}};
  json["cost"] = nullptr;
  if (results.cost.has_value()) {
    json["cost"] = {{"per_device_hour", results.cost->per_device_hour},
                    {"currency", results.cost->currency}};
  }
  const Method* base = BaseOf(results.methods);
  json["base"] = base == nullptr ? Json(nullptr) : Json(base->name);
  json["different"] = DifferentToJson(results);
  json["methods"] = Json::array();
  for (const Method& method : results.methods) json["methods"].push_back(MethodToJson(method));
  return json;
}

std::string ResultsText(const Results& results) {
  return ResultsToJson(results).dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string ResultsToCsv(const Results& results) {
  std::vector<std::string> columns;
  std::set<std::string> known;
  std::vector<std::map<std::string, std::string>> rows;
  for (const Method& method : results.methods) {
    Fields fields;
    Flatten(MethodToJson(method), "", &fields);
    std::map<std::string, std::string>& row = rows.emplace_back();
    for (const auto& [key, value] : fields) {
      row[key] = FieldText(value);
      if (known.insert(key).second) columns.push_back(key);
    }
  }
  // A group that is null in one method has columns in another, and none of its own.
  std::erase_if(columns, [&known](const std::string& column) {
    const auto next = known.upper_bound(column + ".");
    return next != known.end() && absl::StartsWith(*next, column + ".");
  });
  std::string csv = CsvLine(columns);
  for (std::map<std::string, std::string>& row : rows) {
    std::vector<std::string> line;
    for (const std::string& column : columns) line.push_back(row[column]);
    csv += CsvLine(line);
  }
  return csv;
}

}  // namespace tercio::compare
