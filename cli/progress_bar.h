// The progress of a long operation, on stderr: one line that is redrawn on a terminal, a line every
// few seconds elsewhere. Short operations print nothing.
//
// Threads: Show from any, one bar at a time.
#pragma once

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "common/mutex.h"

namespace tercio::cli {

// "[####------]  45.0%  120.0 of 266.7 MB  12.3 MB/s  ETA 11s" after `seconds` of work on the part
// after `first`. `unit` is the name of `scale` units of work. Pure.
struct ProgressUnit {
  const char* name = "MB";
  double scale = 1e6;
};
enum class ProgressStyle { kPlain, kBar };
std::string ProgressText(int64_t first, int64_t done, int64_t total, double seconds,
                         const ProgressUnit& unit, ProgressStyle style);

class ProgressBar {
 public:
  explicit ProgressBar(std::string what, ProgressUnit unit = {});
  ~ProgressBar();  // erases the line
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // `more` is appended to the line. The first call sets the starting point of the rate.
  void Show(int64_t done, int64_t total, const std::string& more = "");

 private:
  const std::string what_;
  const ProgressUnit unit_;
  const bool terminal_;
  const absl::Time start_;
  Mutex mutex_;
  absl::Time last_ TERCIO_GUARDED_BY(mutex_);
  int64_t first_ TERCIO_GUARDED_BY(mutex_) = -1;
  bool drawn_ TERCIO_GUARDED_BY(mutex_) = false;
};

}  // namespace tercio::cli
