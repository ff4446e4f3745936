// Starts a program that computes on untrusted input: without root's rights if the agent has these,
// with no way to gain any (no_new_privs), in a process group of its own, and with no file of this
// process except its standard streams.
//
// Threads: any. The parent's memory is shared until the program has begun; only system calls are
// made meanwhile.
#pragma once

#include <sys/resource.h>
#include <sys/types.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/agent/runs/trainer_user.h"

namespace tercio::agent {

struct ConfinedProgram {
  std::string program;
  std::vector<std::string> arguments;    // argv[0] included
  std::vector<std::string> environment;  // NAME=value: all of it
  // Descriptors that become its standard streams.
  int input = -1;
  int output = -1;
  int errors = -1;
  std::optional<TrainerUser> user;             // nullopt: that of this process
  std::vector<std::pair<int, rlimit>> limits;  // RLIMIT_*, none higher than this process's
  bool ends_with_thread = false;  // SIGKILL when the thread that starts it ends, for any reason
};

// The caller waits for the process. INTERNAL where it cannot be started.
absl::StatusOr<pid_t> StartConfined(const ConfinedProgram& confined);

// NAME=value of this process.
std::vector<std::string> OwnEnvironment();

}  // namespace tercio::agent
