// Accounts for the time of a rank's training loop: exactly one phase runs at any moment and is
// charged for it, except for the time spent waiting for other ranks. The parts sum to the elapsed
// time exactly. A switch reads the clock once.
//
// This is the host's clock. On the CPU work runs when it is called, so a phase is charged for its
// work. A GPU works later: there a phase is charged for enqueuing work, and waiting for the device
// is charged to the phase in which the host waits.
//
// Threads: one, that of the engine.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <utility>

namespace tercio::progress {

enum class Phase {
  kOther,
  kForward,
  kBackward,
  kWait,  // for other ranks; only by Waited, never entered
  kOptimizer,
  kData,
  kCheckpoint,
  kEvaluation,
};
inline constexpr size_t kPhases = 8;

class PhaseClock {
 public:
  using Nanoseconds = int64_t;
  // A clock that never goes back.
  using Now = Nanoseconds (*)();

  explicit PhaseClock(Now now = &SteadyNanoseconds) : now_(now) {}

  // Starts counting time; further calls have no effect.
  void Start() {
    if (started_) return;
    started_ = true;
    waited_ = 0;
    since_ = now_();
  }
  bool started() const { return started_; }

  // Ends the running phase and begins `phase`. Returns the one that ended.
  Phase Enter(Phase phase) {
    Settle();
    return std::exchange(phase_, phase);
  }

  // Charges `seconds` of the running phase to waiting for other ranks.
  void Waited(double seconds) { waited_ += static_cast<Nanoseconds>(seconds * 1e9); }

  // Times by phase, up to now.
  const std::array<Nanoseconds, kPhases>& Read() {
    Settle();
    return spent_;
  }
  static double Seconds(Nanoseconds time) { return static_cast<double>(time) * 1e-9; }

  // Begins a phase and returns to the previous one at its end.
  class Span {
   public:
    Span(PhaseClock& clock, Phase phase) : clock_(clock), before_(clock.Enter(phase)) {}
    ~Span() { clock_.Enter(before_); }
    Span(const Span&) = delete;
    Span& operator=(const Span&) = delete;

   private:
    PhaseClock& clock_;
    const Phase before_;
  };

 private:
  static Nanoseconds SteadyNanoseconds() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }

  void Settle() {
    if (!started_) return;
    const Nanoseconds now = now_();
    const Nanoseconds span = now - since_;
    const Nanoseconds waited = std::clamp(waited_, Nanoseconds{0}, span);
    spent_[static_cast<size_t>(Phase::kWait)] += waited;
    spent_[static_cast<size_t>(phase_)] += span - waited;
    since_ = now;
    waited_ = 0;
  }

  const Now now_;
  bool started_ = false;
  Phase phase_ = Phase::kOther;
  Nanoseconds since_ = 0;
  Nanoseconds waited_ = 0;  // time that the running phase waited
  std::array<Nanoseconds, kPhases> spent_{};
};

}  // namespace tercio::progress
