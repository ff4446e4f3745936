// Starting a program: without input, with an empty signal mask, and with its output where the
// caller wants it.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tercio {

struct SpawnOptions {
  int output = 1;          // descriptor that becomes its standard output
  std::string errors;      // file for its standard error, truncated; empty: this process's
  bool own_group = false;  // Ctrl-C on the terminal is not for it
};

// `arguments` begins with the program, a path or a name on PATH. Whoever calls waits for the
// process. NOT_FOUND where it cannot be started.
absl::StatusOr<pid_t> Spawn(std::vector<std::string> arguments, const SpawnOptions& options);

}  // namespace tercio
