// A daemon that the CLI starts for itself: the private coordinator and agent of `tercio run`.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tercio::cli {

// The path of another of Tercio's programs: beside this one, or where Bazel puts it; else its name.
std::string LocateProgram(const std::string& program);

class Child {
 public:
  // Starts PROGRAM (beside this program's own file) and waits for its ready line. When it ends
  // before that, the error has the code of its exit status and the last words it wrote to
  // `log_path`.
  static absl::StatusOr<std::unique_ptr<Child>> Start(const std::string& program,
                                                      const std::vector<std::string>& arguments,
                                                      const std::string& log_path);
  // SIGTERM, and SIGKILL when that does not help within ten seconds.
  ~Child();

  // What follows NAME= in the ready line.
  std::string Ready(const std::string& name) const;
  void Kill();
  // "signal 9", "exit code 7" once it has ended; empty: it lives.
  std::string EndedWith();

 private:
  Child() = default;
  pid_t pid_ = -1;
  std::string ready_;
  std::string end_;
};

}  // namespace tercio::cli
