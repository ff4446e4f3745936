// The lines of a log file that another process appends to, each once, even across successive
// readers. The writer may rename the file to PATH.1 and begin a new one
// (worker/trainer/log_file.h); a reader that was away for two of those misses the lines between.
//
// Not thread-safe. Errors: a file that cannot be read, or is not a regular one
// (common/untrusted_file.h), has no lines.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/untrusted_file.h"

namespace tercio::agent {

struct LogPosition {
  uint64_t file = 0;   // inode; 0: the beginning of the present file
  int64_t offset = 0;  // past the last line that was taken
};

// What becomes of a last line without its end.
enum class Unfinished { kLeave, kTake };

class LogTail {
 public:
  LogTail(std::string path, LogPosition from) : path_(std::move(path)), position_(from) {}

  // The end of the file as it is now.
  static LogPosition EndOf(const std::string& path);

  // Some of the lines that follow; none if there are none yet. Lines that are too long are cut.
  std::vector<std::string> Read(Unfinished last);
  const LogPosition& position() const { return position_; }

  // The last lines before the position, `most` of them at most.
  std::vector<std::string> Preceding(size_t most);

 private:
  bool Open();
  bool NextFileHasBegun() const;
  std::vector<std::string> ReadHere(Unfinished last);

  const std::string path_;
  LogPosition position_;
  std::optional<UntrustedFile> file_;
};

}  // namespace tercio::agent
