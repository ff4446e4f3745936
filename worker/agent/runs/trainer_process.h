// One trainer in a process group of its own: started, or found again after another agent has
// started it; its log is read line by line; it is stopped and waited for.
//
// The trainer writes its log file itself, so that it needs no reader, and outlives the agent. The
// exit status of an adopted process is not available.
//
// Threads: methods from any thread; callbacks come from a thread of the object. The destructor
// kills and waits, unless the process was released.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "common/mutex.h"
#include "worker/agent/runs/log_tail.h"
#include "worker/agent/runs/trainer_user.h"

namespace tercio::agent {

struct ProcessExit {
  // For an adopted process only the signal that was sent to it is known, if any.
  bool adopted = false;
  bool away = false;  // it had ended before it was found again
  int exit_code = 0;  // valid when signal == 0
  int signal = 0;
  bool out_of_memory = false;  // killed by the kernel, because memory ran out (memory_kill.h)
  std::vector<std::string> last_lines;
};

// Process numbers are reused; a number together with its start time is not.
struct ProcessId {
  pid_t pid = 0;
  uint64_t start_time = 0;  // proc(5), field 22 of stat
};

// 0 if there is no such process.
uint64_t StartTimeOf(pid_t pid);

class TrainerProcess {
 public:
  struct Options {
    std::string program;
    std::vector<std::string> arguments;    // argv[0] included
    std::vector<std::string> environment;  // NAME=value, added to the agent's own
    std::string token;     // sent on its standard input: an environment is visible to others
    std::string log_path;  // others must not be able to create links at this path
    std::optional<TrainerUser> user;  // nullopt: the agent's
  };
  // Lines, and the position after them; called without lines from time to time, so that time passes
  // for the callee.
  using OnLines =
      std::function<void(const std::vector<std::string>& lines, const LogPosition& position)>;
  using OnExit = std::function<void(const ProcessExit&)>;

  // on_exit is called once, after the last on_lines.
  static absl::StatusOr<std::unique_ptr<TrainerProcess>> Start(const Options& options,
                                                               OnLines on_lines, OnExit on_exit);
  // A process that another agent has started. If it has gone, on_exit is called nonetheless.
  static std::unique_ptr<TrainerProcess> Adopt(ProcessId id, const std::string& log_path,
                                               LogPosition from, OnLines on_lines, OnExit on_exit);
  ~TrainerProcess();

  const ProcessId& id() const { return id_; }
  // The position in the log when the process started.
  const LogPosition& log_start() const { return log_start_; }
  // Signals the whole process group; has no effect after its end.
  void Signal(int signal);
  // Leaves it running on its own: it is no longer watched, and no callback follows.
  void Release();

 private:
  enum class Origin { kStarted, kAdopted };
  TrainerProcess(ProcessId id, Origin origin, LogPosition log_start)
      : id_(id), child_(origin == Origin::kStarted), log_start_(log_start) {}
  void Begin(const std::string& log_path, OnLines on_lines, OnExit on_exit);
  void Watch(const std::string& log_path, const OnLines& on_lines, const OnExit& on_exit);
  bool HasEnded(int wait_milliseconds) const;
  ProcessExit Reap();
  bool SentKill();  // as the last signal

  const ProcessId id_;
  const bool child_;
  const LogPosition log_start_;
  int handle_ = -1;    // pidfd; -1: it had gone before
  bool away_ = false;  // it had ended before it was adopted
  Mutex mutex_;
  // Reaped: the number may belong to another process by now.
  bool ended_ TERCIO_GUARDED_BY(mutex_) = false;
  int signalled_ TERCIO_GUARDED_BY(mutex_) = 0;  // the last signal that was sent
  std::atomic<bool> released_{false};
  std::thread watcher_;
};

}  // namespace tercio::agent
