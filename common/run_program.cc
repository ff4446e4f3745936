#include "common/run_program.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/spawn.h"
#include "common/steady_time.h"

namespace tercio {
namespace {

// The output ends before the process does: this is how often its end is looked for.
constexpr int kPollMilliseconds = 20;

// Reads until the other end is closed. Returns whether that was in time.
bool ReadAll(int descriptor, absl::Time deadline, std::string* text) {
  char buffer[4096];
  while (true) {
    // The deadline holds for the whole output, not for each part of it.
    const double left = absl::ToDoubleMilliseconds(deadline - SteadyNow());
    pollfd entry = {descriptor, POLLIN, 0};
    const int ready = poll(&entry, 1, static_cast<int>(std::clamp(left, 0.0, 1e6)));
    if (ready < 0 && errno == EINTR) continue;
    if (ready == 0 && SteadyNow() < deadline) continue;  // poll waits for minutes at most
    if (ready <= 0) return false;
    const ssize_t count = read(descriptor, buffer, sizeof(buffer));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return true;
    text->append(buffer, static_cast<size_t>(count));
  }
}

// Waits for the process until the deadline. Returns whether it has ended; it is reaped then.
bool Wait(pid_t pid, absl::Time deadline, int* status) {
  while (waitpid(pid, status, WNOHANG) != pid) {
    if (SteadyNow() >= deadline) return false;
    poll(nullptr, 0, kPollMilliseconds);
  }
  return true;
}

}  // namespace

absl::StatusOr<std::string> RunProgram(const std::vector<std::string>& arguments,
                                       absl::Duration patience, ErrorOutput errors) {
  const std::string& program = arguments.front();
  int output[2];
  if (pipe2(output, O_CLOEXEC) != 0) {
    return absl::InternalError(
        absl::StrCat("cannot create a pipe for ", program, ": ", std::strerror(errno)));
  }
  const absl::Time deadline = SteadyNow() + patience;
  const absl::StatusOr<pid_t> pid =
      Spawn(arguments, {output[1], errors == ErrorOutput::kDiscarded ? "/dev/null" : ""});
  // The child's end must be the only one, or the read would never see it close.
  close(output[1]);
  std::string text;
  const bool read = pid.ok() && ReadAll(output[0], deadline, &text);
  close(output[0]);
  if (!pid.ok()) return pid.status();
  int status = 0;
  if (!read || !Wait(*pid, deadline, &status)) {
    // A process that hangs in a driver survives even this.
    kill(*pid, SIGKILL);
    // A process that was killed is reaped, so that it does not stay as a zombie.
    Wait(*pid, SteadyNow() + absl::Seconds(1), &status);
    return absl::DeadlineExceededError(
        absl::StrCat(program, " did not exit within ", absl::FormatDuration(patience)));
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return text;
  return absl::InternalError(
      absl::StrCat(program, WIFEXITED(status) ? " exited with code " : " was killed by signal ",
                   WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status)));
}

}  // namespace tercio
