#include "worker/agent/runs/trainer_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/untrusted_file.h"
#include "worker/agent/runs/confined_process.h"
#include "worker/agent/runs/memory_kill.h"

namespace tercio::agent {
namespace {

// These go into the report of an exit, which people read.
constexpr size_t kLastLines = 20;
constexpr int kPollMilliseconds = 100;

// A descriptor from which `text` can be read, once.
absl::StatusOr<int> Holding(const std::string& text) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return absl::InternalError(absl::StrCat("cannot make a pipe: ", std::strerror(errno)));
  }
  // A pipe holds far more than a token (pipe(7): 64 KiB), so this does not block.
  const ssize_t written = write(ends[1], text.data(), text.size());
  close(ends[1]);
  if (written == static_cast<ssize_t>(text.size())) return ends[0];
  close(ends[0]);
  return absl::InternalError("cannot pass the token to the trainer");
}

absl::StatusOr<pid_t> Spawn(const TrainerProcess::Options& options, int output) {
  TERCIO_ASSIGN_OR_RETURN(const int input, Holding(options.token + "\n"));
  const absl::Cleanup close_input = [input] { close(input); };
  ConfinedProgram confined;
  confined.program = options.program;
  confined.arguments = options.arguments;
  confined.environment = options.environment;
  // If two variables have one name, getenv finds the first, which is the option's.
  for (std::string& entry : OwnEnvironment()) confined.environment.push_back(std::move(entry));
  confined.input = input;
  confined.output = output;
  confined.errors = output;
  confined.user = options.user;
  return StartConfined(confined);
}

}  // namespace

uint64_t StartTimeOf(pid_t pid) {
  std::stringstream text;
  text << std::ifstream(absl::StrCat("/proc/", pid, "/stat")).rdbuf();
  // The name, in parentheses, may hold anything; the state, field 3, follows it.
  const std::string all = text.str();
  const size_t name_end = all.rfind(") ");
  if (name_end == std::string::npos) return 0;
  std::stringstream fields(all.substr(name_end + 2));
  std::string field;
  for (int i = 3; i <= 22; ++i) fields >> field;
  return std::strtoull(field.c_str(), nullptr, 10);
}

absl::StatusOr<std::unique_ptr<TrainerProcess>> TrainerProcess::Start(const Options& options,
                                                                      OnLines on_lines,
                                                                      OnExit on_exit) {
  const auto log = UntrustedFile::OpenToAppend(options.log_path);
  if (!log.ok()) return log.status();
  const int output = log->descriptor();
  if (options.user.has_value() && fchown(output, options.user->uid, options.user->gid) != 0) {
    return absl::InternalError(absl::StrCat("cannot change the owner of ", options.log_path, " to ",
                                            options.user->name, ": ", std::strerror(errno)));
  }
  // The end is taken before the process starts, so that none of its lines is missed.
  const LogPosition log_start = {log->inode(), log->size()};
  const absl::StatusOr<pid_t> pid = Spawn(options, output);
  if (!pid.ok()) return pid.status();
  std::unique_ptr<TrainerProcess> process(
      new TrainerProcess({*pid, StartTimeOf(*pid)}, Origin::kStarted, log_start));
  process->Begin(options.log_path, std::move(on_lines), std::move(on_exit));
  return process;
}

std::unique_ptr<TrainerProcess> TrainerProcess::Adopt(ProcessId id, const std::string& log_path,
                                                      LogPosition from, OnLines on_lines,
                                                      OnExit on_exit) {
  std::unique_ptr<TrainerProcess> process(new TrainerProcess(id, Origin::kAdopted, from));
  process->Begin(log_path, std::move(on_lines), std::move(on_exit));
  return process;
}

void TrainerProcess::Begin(const std::string& log_path, OnLines on_lines, OnExit on_exit) {
  if (id_.pid > 0) handle_ = static_cast<int>(syscall(SYS_pidfd_open, id_.pid, 0));
  // Checked after the handle was made: the handle is of this process and not of a later one.
  if (handle_ >= 0 && StartTimeOf(id_.pid) != id_.start_time) {
    close(handle_);
    handle_ = -1;
  }
  away_ = HasEnded(0);  // also true of one that has not been reaped yet
  watcher_ = std::thread([this, log_path, lines = std::move(on_lines), exit = std::move(on_exit)] {
    Watch(log_path, lines, exit);
  });
}

bool TrainerProcess::HasEnded(int wait_milliseconds) const {
  if (handle_ < 0) return true;
  pollfd waited = {handle_, POLLIN, 0};
  return poll(&waited, 1, wait_milliseconds) > 0;
}

void TrainerProcess::Watch(const std::string& log_path, const OnLines& on_lines,
                           const OnExit& on_exit) {
  LogTail log(log_path, log_start_);
  MemoryKillWatch memory(id_.pid);
  std::deque<std::string> last;
  if (!child_) {
    // The previous agent has sent these lines, but they may be the last words.
    for (std::string& line : log.Preceding(kLastLines)) last.push_back(std::move(line));
  }
  for (bool ended = false; !ended;) {
    ended = HasEnded(kPollMilliseconds);
    if (released_) return;
    // The kernel's counts are compared with those of a moment when the process lived.
    if (!ended) memory.Sample();
    // This call has no lines: a limit that has dropped
    // some may have room now to say so (LineLimit).
    on_lines({}, log.position());
    const auto take = [&] { return log.Read(ended ? Unfinished::kTake : Unfinished::kLeave); };
    for (auto lines = take(); !lines.empty(); lines = take()) {
      for (const std::string& line : lines) last.push_back(line);
      while (last.size() > kLastLines) last.pop_front();
      on_lines(lines, log.position());
      if (released_) return;
      // A process that writes without a pause must not hide its end.
      if (!ended) ended = HasEnded(0);
    }
  }
  ProcessExit result = Reap();
  const bool unknown = result.adopted && result.signal == 0;
  // A kill while the agent was away cannot be told from other kills.
  if (!result.away && (unknown || (result.signal == SIGKILL && !SentKill()))) {
    result.out_of_memory = memory.Killed();
  }
  result.last_lines.assign(last.begin(), last.end());
  on_exit(result);
}

bool TrainerProcess::SentKill() {
  MutexLock lock(mutex_);
  return signalled_ == SIGKILL;
}

ProcessExit TrainerProcess::Reap() {
  ProcessExit result;
  MutexLock lock(mutex_);
  // From now on the number may belong to another process, so Signal sends nothing.
  ended_ = true;
  if (!child_) {
    result.adopted = true;
    result.away = away_;
    result.signal = signalled_;
    return result;
  }
  kill(-id_.pid, SIGKILL);  // any processes that it has started
  int status = 0;
  // It has ended: this only fetches the status.
  while (waitpid(id_.pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFSIGNALED(status)) {
    result.signal = WTERMSIG(status);
  } else {
    result.exit_code = WEXITSTATUS(status);
  }
  return result;
}

void TrainerProcess::Signal(int signal) {
  MutexLock lock(mutex_);
  // A child keeps its process number until it is reaped; another process, as long as it lives.
  if (ended_ || (!child_ && HasEnded(0))) return;
  signalled_ = signal;
  kill(-id_.pid, signal);
  // A stopped process receives SIGTERM only when it continues.
  if (signal == SIGTERM) kill(-id_.pid, SIGCONT);
}

void TrainerProcess::Release() { released_ = true; }

TrainerProcess::~TrainerProcess() {
  if (!released_) Signal(SIGKILL);
  if (watcher_.joinable()) watcher_.join();
  if (handle_ >= 0) close(handle_);
}

}  // namespace tercio::agent
