// The form of log lines for people, and the times for selecting them. Pure.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/tercio/v1/events.pb.h"

namespace tercio::cli {

// "[1.3] 2026-05-01T12:00:00.250Z warning the agent has gone": attempt and rank, and a line in
// logfmt without the fields that repeat them. Any other line is shown as it is.
std::string LogText(const v1::LogLine& line);

// The time of "5m" before `now`, or of an RFC 3339 text. INVALID_ARGUMENT.
absl::StatusOr<absl::Time> SinceTime(const std::string& text, absl::Time now);

}  // namespace tercio::cli
