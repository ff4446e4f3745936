// A daemon that the CLI starts for itself: the private coordinator and agent of `tercio run`.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tercio::cli {

// The path of another of Tercio's programs: in this program's directory, or where Bazel puts it;
// else its name.
std::string LocateProgram(const std::string& program);

class Child {
 public:
  // Starts PROGRAM (from this program's own directory) and waits for its ready line. If it ends
  // before that, the error has the code of its exit status and the last lines that it wrote to
  // `log_path`.
  static absl::StatusOr<std::unique_ptr<Child>> Start(const std::string& program,
                                                      const std::vector<std::string>& arguments,
                                                      const std::string& log_path);
  // Sends SIGTERM, and SIGKILL if the process has not exited within ten seconds.
  ~Child();

  // The value of NAME= in the ready line.
  std::string Ready(const std::string& name) const;
  void Kill();
  // "signal 9" or "exit code 7" once it has ended; empty while it runs.
  std::string EndedWith();

 private:
  Child() = default;
  pid_t pid_ = -1;
  std::string ready_;
  std::string end_;
};

}  // namespace tercio::cli
