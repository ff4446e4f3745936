#include "worker/agent/trainer_process.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>

#include "absl/strings/str_cat.h"

extern char** environ;

namespace tercio {
namespace {

constexpr size_t kLastLines = 20;

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& text : strings) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

std::vector<std::string> Environment(const std::vector<std::string>& added) {
  std::vector<std::string> all = added;
  for (char** entry = environ; *entry != nullptr; ++entry) all.push_back(*entry);
  return all;
}

absl::StatusOr<pid_t> Spawn(const TrainerProcess::Options& options, int output) {
  std::vector<std::string> arguments = options.arguments;
  std::vector<std::string> environment = Environment(options.environment);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, output, STDERR_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  // A group of its own (so that Ctrl-C on the terminal is the agent's to handle), default signals.
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK);
  pid_t pid = -1;
  const int error = posix_spawn(&pid, options.program.c_str(), &actions, &attributes,
                                Pointers(arguments).data(), Pointers(environment).data());
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (error != 0) {
    return absl::InternalError(
        absl::StrCat("cannot start ", options.program, ": ", std::strerror(error)));
  }
  return pid;
}

// Calls `handle` for each line until the other end closes.
template <typename Handle>
void ReadLines(int descriptor, const Handle& handle) {
  std::string pending;
  char buffer[4096];
  while (true) {
    const ssize_t count = read(descriptor, buffer, sizeof(buffer));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    pending.append(buffer, static_cast<size_t>(count));
    for (size_t end; (end = pending.find('\n')) != std::string::npos;) {
      handle(pending.substr(0, end));
      pending.erase(0, end + 1);
    }
  }
  if (!pending.empty()) handle(pending);
}

}  // namespace

absl::StatusOr<std::unique_ptr<TrainerProcess>> TrainerProcess::Start(const Options& options,
                                                                      OnLine on_line,
                                                                      OnExit on_exit) {
  int output[2];
  if (pipe2(output, O_CLOEXEC) != 0) {
    return absl::InternalError(absl::StrCat("cannot make a pipe: ", std::strerror(errno)));
  }
  const absl::StatusOr<pid_t> pid = Spawn(options, output[1]);
  close(output[1]);
  if (!pid.ok()) {
    close(output[0]);
    return pid.status();
  }
  std::unique_ptr<TrainerProcess> process(new TrainerProcess);
  process->pid_ = *pid;
  process->watcher_ =
      std::thread([raw = process.get(), read_end = output[0], path = options.log_path,
                   line = std::move(on_line),
                   exit = std::move(on_exit)] { raw->Watch(read_end, path, line, exit); });
  return process;
}

void TrainerProcess::Watch(int output, const std::string& log_path, const OnLine& on_line,
                           const OnExit& on_exit) {
  ProcessExit result;
  {
    std::ofstream log(log_path, std::ios::app);
    std::deque<std::string> last;
    ReadLines(output, [&](const std::string& line) {
      log << line << std::endl;
      last.push_back(line);
      if (last.size() > kLastLines) last.pop_front();
      on_line(line);
    });
    result.last_lines.assign(last.begin(), last.end());
  }
  close(output);
  // Waits without reaping first, so that Signal can never hit a recycled process number.
  siginfo_t info;
  while (waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT) != 0 && errno == EINTR) {
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ended_ = true;
    int status = 0;
    while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    if (WIFSIGNALED(status)) {
      result.signal = WTERMSIG(status);
    } else {
      result.exit_code = WEXITSTATUS(status);
    }
  }
  on_exit(result);
}

void TrainerProcess::Signal(int signal) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!ended_) kill(-pid_, signal);
}

TrainerProcess::~TrainerProcess() {
  Signal(SIGKILL);
  if (watcher_.joinable()) watcher_.join();
}

}  // namespace tercio
