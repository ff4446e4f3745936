// Runs a program to its end and captures its output.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace tercio {

// What becomes of a program's standard error: it goes where that of this process goes, or nowhere.
enum class ErrorOutput { kShared, kDiscarded };

// The standard output of `arguments[0]`, a path. NOT_FOUND if it cannot be started; INTERNAL if it
// exits with a code other than 0; DEADLINE_EXCEEDED if it has not ended within `patience`, in which
// case it is killed.
absl::StatusOr<std::string> RunProgram(const std::vector<std::string>& arguments,
                                       absl::Duration patience,
                                       ErrorOutput errors = ErrorOutput::kShared);

}  // namespace tercio
