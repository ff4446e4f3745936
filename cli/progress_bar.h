// How far something long has come: one line that is drawn again and again on a terminal, a line
// every few seconds elsewhere; always on stderr. What is soon done says nothing.
//
// Threads: Show from any, one bar at a time.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>

#include "absl/time/time.h"

namespace tercio::cli {

// "[####------]  45.0%  120.0 of 266.7 MB  12.3 MB/s  ETA 11s" after `seconds` of work on what came
// after `first`. `unit` is what a number of `scale` is called. Pure.
struct ProgressUnit {
  const char* name = "MB";
  double scale = 1e6;
};
std::string ProgressText(int64_t first, int64_t done, int64_t total, double seconds,
                         const ProgressUnit& unit, bool bar);

class ProgressBar {
 public:
  explicit ProgressBar(std::string what, ProgressUnit unit = {});
  ~ProgressBar();  // takes the line away
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // `more` is said behind it. The first call says from where on is counted.
  void Show(int64_t done, int64_t total, const std::string& more = "");

 private:
  const std::string what_;
  const ProgressUnit unit_;
  const bool terminal_;
  const absl::Time start_;
  std::mutex mutex_;
  absl::Time last_;
  int64_t first_ = -1;
  bool drawn_ = false;
};

}  // namespace tercio::cli
