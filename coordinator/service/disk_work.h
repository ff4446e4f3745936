// Work with checkpoints that may keep the disk busy for minutes (verifying one, removing old ones),
// beside the thread that decides: that of one job in the order in which it came, that of several
// jobs side by side.
//
// Threads: Run from any.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>

#include "common/thread_pool.h"

namespace tercio::coordinator {

class DiskWork {
 public:
  // REQUIRES: threads >= 1.
  explicit DiskWork(int threads) : pool_(threads) {}

  // What was given to it is done, also when this is destroyed.
  void Run(const std::string& job, std::function<void()> task);

 private:
  void DoFirst(const std::string& job);

  std::mutex mutex_;
  // By job, those that have any: the first is being done, or will be next.
  std::map<std::string, std::deque<std::function<void()>>> tasks_;
  ThreadPool pool_;  // last: its threads use the others
};

}  // namespace tercio::coordinator
