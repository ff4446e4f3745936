// Where this rank is: step, action of the schedule, and what it waits for. The engine and the
// communicators tell it; the progress page shows it to the agent, and a collective that does not
// match says it to the other ranks.
//
// Two threads of a rank may wait at the same time: the engine's, and the one that sums gradients
// beside it. A rank is where its engine is; what the other thread waits for counts only while the
// engine waits for that thread (BeginJoin). The engine's thread is the one that begins steps and
// actions. Threads: all methods from any thread, but those of the engine. A call costs nanoseconds.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

#include "worker/progress/progress_page.h"

namespace tercio {

class Whereabouts {
 public:
  // `page` may be null: then nobody outside learns where the rank is.
  explicit Whereabouts(ProgressPage* page) : page_(page) {}
  Whereabouts(const Whereabouts&) = delete;
  Whereabouts& operator=(const Whereabouts&) = delete;

  // ---- of the engine's thread ----
  void BeginStep(int64_t step);
  // `name` is a literal; an index below 0: none.
  void BeginAction(const char* name, int index = -1);
  void EndStep(int64_t step, double step_seconds, double compute_seconds);
  // Around waiting for the other thread of this rank.
  void BeginJoin();
  void EndJoin(double seconds);

  // ---- of both threads ----
  void BeginWait(const CollectivePosition& position);
  void EndWait(double seconds);

  // Seconds that the engine's thread has waited so far, for other ranks or the other thread.
  double engine_wait_seconds() const { return engine_wait_seconds_; }
  int64_t step() const { return step_; }
  // "forward 3", "evaluation"; empty before the first.
  std::string action() const;

 private:
  bool OnEngineThread() const { return std::this_thread::get_id() == engine_.load(); }

  ProgressPage* const page_;
  std::atomic<std::thread::id> engine_{};
  std::atomic<int64_t> step_{0};
  std::atomic<const char*> action_{""};
  std::atomic<int> index_{-1};
  std::atomic<double> engine_wait_seconds_{0};
  std::mutex mutex_;           // what follows
  CollectivePosition beside_;  // what the other thread waits for; empty operation: nothing
  bool joining_ = false;
};

}  // namespace tercio
