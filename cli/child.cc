#include "cli/child.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/daemon/daemon.h"
#include "common/exit_codes.h"
#include "common/file.h"
#include "common/spawn.h"

namespace tercio::cli {
namespace {

absl::Status StatusOfExit(int status, const std::string& program, const std::string& log_path) {
  // The log is where the program said why it ended.
  const absl::StatusOr<std::string> log = ReadFile(log_path);
  std::string words = log.ok() ? *log : "";
  // The last error is the one that ended it.
  const size_t error = words.rfind("error: ");
  if (error != std::string::npos) words = words.substr(error + 7);
  while (!words.empty() && words.back() == '\n') words.pop_back();
  const std::string message =
      words.empty() ? absl::StrCat(program, " exited immediately; see ", log_path) : words;
  // The exit codes are those of all programs of Tercio, so that this one passes them on.
  switch (WIFEXITED(status) ? WEXITSTATUS(status) : kExitInternal) {
    case kExitUsage:
      return absl::InvalidArgumentError(message);
    case kExitNotFound:
      return absl::NotFoundError(message);
    case kExitForbidden:
      return absl::PermissionDeniedError(message);
    case kExitConflict:
      return absl::FailedPreconditionError(message);
    default:
      return absl::InternalError(message);
  }
}

std::string ReadLine(int descriptor) {
  std::string line;
  // Byte by byte, as nothing behind the line may be taken from the pipe.
  char c;
  while (true) {
    const ssize_t count = read(descriptor, &c, 1);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0 || c == '\n') return line;
    line.push_back(c);
  }
}

}  // namespace

std::string LocateProgram(const std::string& program) {
  // Programs lie side by side when installed, and in their folders when built.
  const std::string here = ProgramDirectory();
  const std::string folder = program == "tercio-agent"               ? "worker/agent"
                             : program.starts_with("tercio-trainer") ? "worker/trainer"
                                                                     : "coordinator";
  for (const std::string& path :
       {absl::StrCat(here, "/", program), absl::StrCat(here, "/../", folder, "/", program)}) {
    if (access(path.c_str(), X_OK) == 0) return path;
  }
  // The search path is the last resort.
  return program;
}

absl::StatusOr<std::unique_ptr<Child>> Child::Start(const std::string& program,
                                                    const std::vector<std::string>& arguments,
                                                    const std::string& log_path) {
  int output[2];
  if (pipe2(output, O_CLOEXEC) != 0) return FileError(errno, "cannot create a pipe for", program);
  std::vector<std::string> words = {LocateProgram(program)};
  words.insert(words.end(), arguments.begin(), arguments.end());
  // A process group of its own: Ctrl-C goes to this program, which stops the others in order.
  const absl::StatusOr<pid_t> pid = Spawn(std::move(words), {output[1], log_path, true});
  // The child's end must be the only one, or the read below would never see it close.
  close(output[1]);
  if (!pid.ok()) {
    close(output[0]);
    return absl::InternalError(std::string(pid.status().message()));
  }
  std::unique_ptr<Child> child(new Child);
  child->pid_ = *pid;
  child->ready_ = ReadLine(output[0]);
  close(output[0]);
  // A program that ends without this line has failed to start.
  if (child->ready_.rfind("ready ", 0) != 0) {
    int status = 0;
    waitpid(child->pid_, &status, 0);
    // The process is gone, and its number may belong to another one.
    child->pid_ = -1;
    return StatusOfExit(status, program, log_path);
  }
  return child;
}

std::string Child::Ready(const std::string& name) const {
  const std::string key = absl::StrCat(" ", name, "=");
  const size_t at = ready_.find(key);
  // Fields are optional: which ones there are depends on the arguments.
  if (at == std::string::npos) return "";
  const size_t begin = at + key.size();
  return ready_.substr(begin, ready_.find(' ', begin) - begin);
}

void Child::Kill() {
  if (pid_ > 0) kill(pid_, SIGKILL);
}

std::string Child::EndedWith() {
  // Nothing waits here: the supervisor asks ten times per second.
  int status = 0;
  if (pid_ > 0 && waitpid(pid_, &status, WNOHANG) == pid_) {
    pid_ = -1;
    end_ = WIFSIGNALED(status) ? absl::StrCat("signal ", WTERMSIG(status))
                               : absl::StrCat("exit code ", WEXITSTATUS(status));
  }
  return end_;
}

Child::~Child() {
  // A process that has ended was reaped by EndedWith.
  if (pid_ <= 0) return;
  kill(pid_, SIGTERM);
  // The coordinator has ten seconds to end in order: its disk may be slow.
  for (int i = 0; i < 1000; ++i) {
    if (waitpid(pid_, nullptr, WNOHANG) == pid_) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

}  // namespace tercio::cli
