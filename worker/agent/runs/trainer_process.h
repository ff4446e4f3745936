// One trainer in a process group of its own: started, or found again after another agent has
// started it; its log read line by line; stopped; waited for.
//
// The trainer writes into its log file itself, so that it needs nobody who reads, and outlives the
// agent. Of a process that was found again the exit status is not to be had.
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
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/agent/runs/log_tail.h"
#include "worker/agent/runs/trainer_user.h"

namespace tercio {

struct ProcessExit {
  // For an adopted process only the signal that was sent to it is known, if any.
  bool adopted = false;
  bool away = false;  // it had ended before it was found again
  int exit_code = 0;  // valid when signal == 0
  int signal = 0;
  bool out_of_memory = false;  // killed by the kernel, because memory ran out (memory_kill.h)
  std::vector<std::string> last_lines;
};

// Numbers of processes come again; a number with the time of its start does not.
struct ProcessId {
  pid_t pid = 0;
  uint64_t start_time = 0;  // proc(5), field 22 of stat
};

// 0 when there is no such process.
uint64_t StartTimeOf(pid_t pid);

class TrainerProcess {
 public:
  struct Options {
    std::string program;
    std::vector<std::string> arguments;    // argv[0] included
    std::vector<std::string> environment;  // NAME=value, added to the agent's own
    std::string token;     // its standard input holds this line: others can look at an environment
    std::string log_path;  // of which nobody else may be able to make a link
    std::optional<TrainerUser> user;  // nullopt: the agent's
  };
  // Lines, and the position behind them; now and then none, so that time passes for the callee.
  using OnLines =
      std::function<void(const std::vector<std::string>& lines, const LogPosition& position)>;
  using OnExit = std::function<void(const ProcessExit&)>;

  // on_exit is called once, after the last on_lines.
  static absl::StatusOr<std::unique_ptr<TrainerProcess>> Start(const Options& options,
                                                               OnLines on_lines, OnExit on_exit);
  // A process that another agent has started. When it has gone on_exit is called all the same.
  static std::unique_ptr<TrainerProcess> Adopt(ProcessId id, const std::string& log_path,
                                               LogPosition from, OnLines on_lines, OnExit on_exit);
  ~TrainerProcess();

  const ProcessId& id() const { return id_; }
  // Where the log was when the process started.
  const LogPosition& log_start() const { return log_start_; }
  // To the whole process group; nothing happens when it has ended.
  void Signal(int signal);
  // Lets it live on by itself: nothing is watched any more, no callback comes.
  void Release();

 private:
  TrainerProcess(ProcessId id, bool child, LogPosition log_start)
      : id_(id), child_(child), log_start_(log_start) {}
  void Begin(const std::string& log_path, OnLines on_lines, OnExit on_exit);
  void Watch(const std::string& log_path, const OnLines& on_lines, const OnExit& on_exit);
  bool HasEnded(int wait_milliseconds) const;
  ProcessExit Reap();

  const ProcessId id_;
  const bool child_;
  const LogPosition log_start_;
  int handle_ = -1;    // pidfd; -1: it had gone before
  bool away_ = false;  // it had ended when it was looked for
  std::mutex mutex_;
  bool ended_ = false;  // reaped: the number may belong to somebody else by now
  int signalled_ = 0;   // the last signal that was sent
  std::atomic<bool> released_{false};
  std::thread watcher_;
};

}  // namespace tercio
