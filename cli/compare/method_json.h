// The JSON of methods: results.json of `tercio compare`, and the files of baselines
// (docs/formats.md). Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/compare/method.h"

namespace tercio::compare {

inline constexpr char kResultsFormat[] = "tercio-results-1";

Json MethodToJson(const Method& method);

// The methods in the text of a baseline's file. INVALID_ARGUMENT with all faults, one line each,
// FILE: KEY: what.
absl::StatusOr<std::vector<Method>> ParseMethods(const std::string& text, const std::string& file);

struct Scores {
  std::string label;  // the class, or the name of an average
  std::optional<double> precision;
  std::optional<double> recall;
  std::optional<double> f1;
  std::optional<double> support;  // examples of the class
};

// An evaluation as its JSON has it; all but the step and the loss are those of classifiers.
struct Evaluated {
  std::optional<double> step;
  std::optional<double> loss;
  std::optional<double> accuracy;
  std::vector<Scores> classes;
  Scores macro;
  Scores weighted;
  std::vector<std::vector<int64_t>> confusion;  // [class of the example][class predicted]; square
};

// Method.validation or .test; nullopt where it is null.
std::optional<Evaluated> EvaluatedOf(const Json& evaluation);

}  // namespace tercio::compare
