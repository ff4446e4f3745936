// The figures of objectives by the names under which people see them; those of preferences are
// TRL's with an underscore for its slash. Pure.
#pragma once

#include <optional>
#include <string_view>

#include "absl/types/span.h"
#include "proto/tercio/v1/events.pb.h"

namespace tercio::plan {

struct ObjectiveFigure {
  std::string_view name;   // "rewards_margin"
  std::string_view title;  // "Reward margin"
  std::string_view unit;
  // nullopt: the objective has none, or there was no such answer.
  std::optional<double> (*value)(const v1::ObjectiveFigures& figures);
  void (*set)(double value, v1::ObjectiveFigures* figures);
};

// In the order in which they are shown.
absl::Span<const ObjectiveFigure> ObjectiveFigureList();

}  // namespace tercio::plan
