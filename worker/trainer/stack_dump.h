// Stacks of this process, on request from outside: SIGUSR2 makes the thread that gets it append its
// own to a file. The agent asks all threads of a trainer that makes no progress
// (worker/agent/runs/rank_inspector.h).
//
// A thread's part is one write:
//   thread 1234
//     0x000055d0 tercio::Function()
//   end 1234
#pragma once

#include <string>

#include "absl/status/status.h"

namespace tercio::trainer {

// Once per process. `program` is argv[0].
absl::Status InstallStackDump(const char* program, const std::string& path);

}  // namespace tercio::trainer
