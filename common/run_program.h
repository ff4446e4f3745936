// Runs a program to its end and takes what it prints.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace tercio {

// What `arguments[0]`, a path, writes to its standard output; its standard error goes where this
// process's goes, or nowhere with `quiet`. NOT_FOUND when it cannot be started; INTERNAL when it
// ends with another code than 0; DEADLINE_EXCEEDED when it has not ended within `patience`: it is
// killed then.
absl::StatusOr<std::string> RunProgram(const std::vector<std::string>& arguments,
                                       absl::Duration patience, bool quiet = false);

}  // namespace tercio
