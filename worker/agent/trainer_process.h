// One trainer as a child process in a process group of its own: started, its output read line by
// line, stopped, waited for.
//
// Threads: methods from any thread; callbacks come from threads of the object. The destructor kills
// and waits.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"

namespace tercio {

struct ProcessExit {
  int exit_code = 0;  // valid when signal == 0
  int signal = 0;
  std::vector<std::string> last_lines;
};

class TrainerProcess {
 public:
  struct Options {
    std::string program;
    std::vector<std::string> arguments;    // argv[0] included
    std::vector<std::string> environment;  // NAME=value, added to the agent's own
    std::string log_path;                  // every line is appended here
    int64_t most_log_bytes = 16 << 20;     // of that file; one older part is kept beside it
  };
  using OnLine = std::function<void(const std::string& line)>;
  using OnExit = std::function<void(const ProcessExit&)>;

  // on_exit is called once, after the last on_line.
  static absl::StatusOr<std::unique_ptr<TrainerProcess>> Start(const Options& options,
                                                               OnLine on_line, OnExit on_exit);
  ~TrainerProcess();

  pid_t pid() const { return pid_; }
  // To the whole process group; nothing happens when it has ended.
  void Signal(int signal);

 private:
  TrainerProcess() = default;
  void Watch(int output, const Options& options, const OnLine& on_line, const OnExit& on_exit);

  pid_t pid_ = -1;
  std::mutex mutex_;
  bool ended_ = false;  // reaped: the number may belong to somebody else by now
  std::thread watcher_;
};

}  // namespace tercio
