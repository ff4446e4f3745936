// Decides when files that are in use are read again: when one of them has changed, and, after
// content that could not be used, from time to time, as it may become usable later.
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace tercio {

class FileWatch {
 public:
  // Looks at the files, which the caller reads after that.
  FileWatch(std::vector<std::string> paths, absl::Duration between_tries);

  enum class Due {
    kNo,
    kChanged,
    kRetry,  // the files are those of the last try, which failed
  };
  // Whether the files must be read. `now`: on any clock that never jumps.
  Due Look(absl::Time now);
  // What has come of it.
  void Tried(bool usable, absl::Time now);

 private:
  // A file's identity and modification time, one of which changes with every way of replacing a
  // file. Zeros: there is none.
  struct Stamp {
    uint64_t inode = 0;
    int64_t seconds = 0;
    int64_t nanoseconds = 0;
    bool operator==(const Stamp&) const = default;
  };
  std::vector<Stamp> Stamps() const;

  const std::vector<std::string> paths_;
  const absl::Duration between_tries_;
  std::vector<Stamp> seen_;
  absl::Time retry_at_ = absl::InfiniteFuture();
};

}  // namespace tercio
