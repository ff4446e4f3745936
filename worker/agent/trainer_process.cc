#include "worker/agent/trainer_process.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <deque>
#include <fstream>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"

extern char** environ;

namespace tercio {
namespace {

constexpr size_t kLastLines = 20;
constexpr size_t kLongestLine = 8192;
constexpr int kPollMilliseconds = 100;

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
  sigset_t pipe;  // which libraries of the agent may ignore
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  posix_spawnattr_setsigdefault(&attributes, &pipe);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
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

// Cuts a stream of bytes into lines. A line that does not end is cut too.
class LineCutter {
 public:
  template <typename Handle>
  void Add(std::string_view bytes, const Handle& handle) {
    pending_ += bytes;
    for (size_t end; (end = pending_.find('\n')) != std::string::npos;) {
      handle(pending_.substr(0, end));
      pending_.erase(0, end + 1);
    }
    if (pending_.size() >= kLongestLine) Flush(handle);
  }
  template <typename Handle>
  void Flush(const Handle& handle) {
    if (!pending_.empty()) handle(std::exchange(pending_, {}));
  }

 private:
  std::string pending_;
};

// A file that starts anew when it is full; the full one stays beside it as PATH.1.
class LogFile {
 public:
  LogFile(std::string path, int64_t most_bytes) : path_(std::move(path)), most_bytes_(most_bytes) {
    file_.open(path_, std::ios::app | std::ios::ate);
  }
  void Append(const std::string& line) {
    if (file_.tellp() > most_bytes_) {
      file_.close();
      std::rename(path_.c_str(), (path_ + ".1").c_str());
      file_.open(path_, std::ios::trunc);
    }
    file_ << line << std::endl;
    // A full disk must not stop the training: the line still goes to the coordinator.
    if (!file_) file_.clear();
  }

 private:
  std::string path_;
  int64_t most_bytes_;
  std::ofstream file_;
};

// Whether the child has ended; it stays unreaped, so that its number stays its own.
bool HasEnded(pid_t pid, bool wait) {
  siginfo_t info = {};
  const int options = WEXITED | WNOWAIT | (wait ? 0 : WNOHANG);
  while (waitid(P_PID, static_cast<id_t>(pid), &info, options) != 0) {
    if (errno != EINTR) return true;
  }
  return info.si_pid == pid;
}

// Reads the child's output to its end, or, when something else holds the pipe open, until the child
// has ended and nothing more is there.
template <typename Handle>
void ReadLines(int descriptor, pid_t pid, const Handle& handle) {
  LineCutter lines;
  char buffer[4096];
  while (true) {
    pollfd waited = {descriptor, POLLIN, 0};
    const bool ended = HasEnded(pid, /*wait=*/false);
    const int ready = poll(&waited, 1, ended ? 0 : kPollMilliseconds);
    if (ready == 0 && ended) break;
    if (ready <= 0) continue;
    const ssize_t count = read(descriptor, buffer, sizeof(buffer));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    lines.Add(std::string_view(buffer, static_cast<size_t>(count)), handle);
  }
  lines.Flush(handle);
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
      std::thread([raw = process.get(), read_end = output[0], options, line = std::move(on_line),
                   exit = std::move(on_exit)] { raw->Watch(read_end, options, line, exit); });
  return process;
}

void TrainerProcess::Watch(int output, const Options& options, const OnLine& on_line,
                           const OnExit& on_exit) {
  ProcessExit result;
  {
    LogFile log(options.log_path, options.most_log_bytes);
    std::deque<std::string> last;
    ReadLines(output, pid_, [&](const std::string& line) {
      log.Append(line);
      last.push_back(line);
      if (last.size() > kLastLines) last.pop_front();
      on_line(line);
    });
    result.last_lines.assign(last.begin(), last.end());
  }
  close(output);
  HasEnded(pid_, /*wait=*/true);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ended_ = true;
    kill(-pid_, SIGKILL);  // what it may have started itself
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
