#include "common/spawn.h"

#include <fcntl.h>
#include <spawn.h>
#include <unistd.h>

#include <csignal>
#include <cstring>

#include "absl/strings/str_cat.h"

extern char** environ;

namespace tercio {

absl::StatusOr<pid_t> Spawn(std::vector<std::string> arguments, const SpawnOptions& options) {
  const std::string program = arguments.front();
  // The strings are changed by nobody, though the interface would allow it.
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  // Children of daemons have nothing to read.
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, options.output, STDOUT_FILENO);
  if (!options.errors.empty()) {
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, options.errors.c_str(),
                                     O_WRONLY | O_CREAT | O_TRUNC, 0644);
  }
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  // Daemons block signals that their children have to receive.
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(
      &attributes,
      static_cast<short>(POSIX_SPAWN_SETSIGMASK | (options.own_group ? POSIX_SPAWN_SETPGROUP : 0)));
  pid_t pid = -1;
  const int error =
      // The search path is used for names without a slash.
      posix_spawnp(&pid, program.c_str(), &actions, &attributes, pointers.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (error == 0) return pid;
  return absl::NotFoundError(absl::StrCat("cannot start ", program, ": ", std::strerror(error)));
}

}  // namespace tercio
