// Collects a step's actions and their durations; costs nothing while it is off. Both streams of an
// engine write to it.
#pragma once

#include <chrono>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "common/mutex.h"
#include "worker/engine/training_engine.h"

namespace tercio::engine {

class StepTrace {
 public:
  void Set(bool on) { on_ = on; }
  bool on() const { return on_; }

  // Seconds of the monotonic clock.
  static double Now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }

  // Runs `work` and records how long it took. REQUIRES: the work has ended when it returns.
  void Measure(const char* name, int micro_batch, int chunk, absl::FunctionRef<void()> work) {
    const double start = on_ ? Now() : 0;
    work();
    if (on_) Add({name, micro_batch, chunk, start, Now() - start, false});
  }

  void Add(TraceEvent event) {
    MutexLock lock(mutex_);
    events_.push_back(std::move(event));
  }

  std::vector<TraceEvent> Take() {
    MutexLock lock(mutex_);
    return std::exchange(events_, {});
  }

 private:
  bool on_ = false;
  Mutex mutex_;
  std::vector<TraceEvent> events_ TERCIO_GUARDED_BY(mutex_);
};

}  // namespace tercio::engine
