// A trainer's output goes straight into its log file (its standard output and error are that file),
// so that it needs no agent to read it. When the file is full it becomes PATH.1 and a new one
// begins; readers of the log (worker/agent/runs/log_tail.h) rely on the order: the new file is
// empty until nothing is written to the old one any more.
//
// Threads: one of the object's own checks the size, about once a second.
#pragma once

#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "common/mutex.h"

namespace tercio::trainer {

// Begins a new file if that of `descriptors`, which is at `path`, holds more than `most_bytes`, and
// returns whether it did. If that is impossible the old file is continued.
bool RotateLog(const std::string& path, int64_t most_bytes, const std::vector<int>& descriptors);

class LogRotation {
 public:
  // Watches the size of the file at `path`.
  LogRotation(const std::string& path, int64_t most_bytes);
  ~LogRotation();
  LogRotation(const LogRotation&) = delete;
  LogRotation& operator=(const LogRotation&) = delete;

 private:
  Mutex mutex_;
  ConditionVariable changed_;
  bool stopping_ TERCIO_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace tercio::trainer
