// The current place of this rank: step, action of the schedule, and the operation that it waits
// for. The engine and the communicators set it; the progress page shows it to the agent, and a
// mismatched collective reports it to the other ranks.
//
// Several threads of a rank may wait at the same time: the engine's, and those that sum beside it.
// A rank is where its engine is; the wait of another thread counts only while the engine waits for
// that thread (BeginJoin). The engine's thread is the one that begins steps and actions. Threads:
// all methods from any thread, except those of the engine. A call costs nanoseconds.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <thread>

#include "absl/time/time.h"
#include "common/mutex.h"
#include "common/steady_time.h"
#include "worker/progress/exchange_clock.h"
#include "worker/progress/phase_clock.h"
#include "worker/progress/progress_page.h"

namespace tercio::progress {

class Whereabouts {
 public:
  // `page` may be null: then the rank's place is not visible from outside.
  explicit Whereabouts(ProgressPage* page) : page_(page) {}
  Whereabouts(const Whereabouts&) = delete;
  Whereabouts& operator=(const Whereabouts&) = delete;

  // ---- of the engine's thread ----
  void BeginStep(int64_t step);
  // `name` is a literal; an index below 0: none.
  void BeginAction(const char* name, int index = -1);
  // Also begins a phase of the step.
  void BeginAction(Phase phase, const char* name, int index = -1) {
    phases_.Enter(phase);
    BeginAction(name, index);
  }
  void EndStep(int64_t step, double step_seconds, double compute_seconds);
  // Brackets waiting for a thread of this rank that runs the calls of one or two groups.
  void BeginJoin(const std::string& group, const std::string& other);
  void EndJoin(double seconds);
  class Join;
  // The clock of the training loop. Waits of the engine's thread are subtracted from its phases.
  PhaseClock& phases() { return phases_; }
  ExchangeClock& exchanges() { return exchanges_; }

  // ---- of all threads ----
  void BeginWait(const CollectivePosition& position);
  void EndWait(double seconds);

  // Seconds that the engine's thread has waited so far, for other ranks or the other thread.
  double engine_wait_seconds() const { return engine_wait_seconds_; }
  int64_t step() const { return step_; }
  // "forward 3", "evaluation"; empty before the first.
  std::string action() const;

 private:
  bool IsJoining(const std::string& group) const TERCIO_REQUIRES(mutex_) {
    return group == joining_[0] || group == joining_[1];
  }
  bool OnEngineThread() const { return std::this_thread::get_id() == engine_.load(); }

  void CountWait(double seconds) {
    engine_wait_seconds_ = engine_wait_seconds_ + seconds;
    phases_.Waited(seconds);
  }

  ProgressPage* const page_;
  PhaseClock phases_;
  ExchangeClock exchanges_;
  std::atomic<std::thread::id> engine_{};
  std::atomic<int64_t> step_{0};
  std::atomic<const char*> action_{""};
  std::atomic<int> index_{-1};
  std::atomic<double> engine_wait_seconds_{0};
  Mutex mutex_;
  // The waits of other threads.
  std::map<std::thread::id, CollectivePosition> beside_ TERCIO_GUARDED_BY(mutex_);
  std::array<std::string, 2> joining_ TERCIO_GUARDED_BY(mutex_);  // groups; empty: none
};

// Joins for as long as it lives.
class Whereabouts::Join {
 public:
  Join(Whereabouts& where, const std::string& group, const std::string& other = "")
      : where_(where), start_(SteadyNow()) {
    where_.BeginJoin(group, other);
  }
  ~Join() { where_.EndJoin(absl::ToDoubleSeconds(SteadyNow() - start_)); }
  Join(const Join&) = delete;
  Join& operator=(const Join&) = delete;

 private:
  Whereabouts& where_;
  const absl::Time start_;
};

}  // namespace tercio::progress
