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
  bool own_group = false;  // protects it from Ctrl-C on the terminal
};

// `arguments` starts with the program, a path or a name on PATH. The caller waits for the process.
// NOT_FOUND if it cannot be started.
absl::StatusOr<pid_t> Spawn(std::vector<std::string> arguments, const SpawnOptions& options);

}  // namespace tercio
