// Threads for work that may block on a disk for long, or for ever: each key (a job, say) has a
// limited number of them, so that a hanging disk blocks no other key.
//
// The first thread is started immediately, the others when they are needed. If none can be started,
// work waits for the existing ones.
// A task that throws is logged as an error; the thread survives.
//
// Threads: any.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "common/mutex.h"

namespace tercio {

class KeyedPool {
 public:
  // Throws std::system_error where the system has no thread left, as std::thread does.
  using Start = std::function<std::thread(std::function<void()>)>;

  // At most `per_key` tasks of one key at a time, and `most` in all. REQUIRES: both >= 1. Throws
  // what `start` does for the first thread.
  KeyedPool(int per_key, int most, Start start = nullptr);
  // Runs all pending tasks first.
  ~KeyedPool();
  KeyedPool(const KeyedPool&) = delete;
  KeyedPool& operator=(const KeyedPool&) = delete;

  // Tasks of one key start in the order in which they were added; keys take turns.
  void Run(const std::string& key, std::function<void()> task);

  // Waits until all tasks are done, for at most `patience`, and returns whether they are. If they
  // are not, a disk hangs, and the destructor would wait for it.
  bool Drain(absl::Duration patience);

 private:
  struct Queue {
    std::deque<std::function<void()>> tasks;
    int running = 0;
    bool waits = false;  // is in ready_
  };

  void Work();
  void MakeReady(const std::string& key, Queue& queue) TERCIO_REQUIRES(mutex_);
  void AddThread() TERCIO_REQUIRES(mutex_);

  const int per_key_;
  const int most_;
  const Start start_;
  Mutex mutex_;
  ConditionVariable changed_;
  std::map<std::string, Queue> queues_ TERCIO_GUARDED_BY(mutex_);  // by key, where it has tasks
  std::deque<std::string> ready_ TERCIO_GUARDED_BY(mutex_);        // keys whose next task may begin
  int idle_ TERCIO_GUARDED_BY(mutex_) = 0;
  int busy_ TERCIO_GUARDED_BY(mutex_) = 0;
  bool stop_ TERCIO_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_ TERCIO_GUARDED_BY(mutex_);
};

}  // namespace tercio
