// Where the time of a rank's training loop goes: at every moment one phase runs, and what is spent
// belongs to it, but for what was spent waiting for other ranks meanwhile. The parts sum to the
// elapsed time exactly. A switch reads the clock once.
//
// This is the host's clock. On the CPU work runs when it is called, so a phase has the time of its
// work. A GPU works later: there a phase has the time to give out work, and the wait for the device
// belongs to whatever phase the host waits in.
//
// Threads: one, that of the engine.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <utility>

namespace tercio {

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

  // From here on time counts; once more does nothing.
  void Start() {
    if (started_) return;
    started_ = true;
    waited_ = 0;
    since_ = now_();
  }
  bool started() const { return started_; }

  // Ends the running phase and begins this one. Returns the one that ended.
  Phase Enter(Phase phase) {
    Settle();
    return std::exchange(phase_, phase);
  }

  // So much of the running phase was waiting for other ranks.
  void Waited(double seconds) { waited_ += static_cast<Nanoseconds>(seconds * 1e9); }

  // By phase, up to now.
  const std::array<Nanoseconds, kPhases>& Read() {
    Settle();
    return spent_;
  }
  static double Seconds(Nanoseconds time) { return static_cast<double>(time) * 1e-9; }

  // Begins a phase and goes back to the one before.
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
  Nanoseconds waited_ = 0;  // of the running phase
  std::array<Nanoseconds, kPhases> spent_{};
};

}  // namespace tercio
