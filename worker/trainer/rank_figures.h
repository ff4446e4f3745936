// A rank's figures for its agent: where its time went (worker/progress/phase_clock.h), and what it
// uses. Threads: one, that of the training loop.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include "absl/time/time.h"
#include "proto/tercio/v1/events.pb.h"
#include "worker/progress/exchange_clock.h"
#include "worker/progress/phase_clock.h"

namespace tercio::trainer {

// Resident bytes of this process; 0 if the system does not report them.
int64_t ResidentBytes();
// Processor seconds of this process, of all its threads.
double ProcessorSeconds();

// Bytes that the process has had read from and written to disks, by the kernel's count; 0: not
// known.
struct DiskBytes {
  int64_t read = 0;
  int64_t written = 0;
};
DiskBytes BytesOfDisks();

v1::PhaseSeconds ToPhaseSeconds(
    const std::array<progress::PhaseClock::Nanoseconds, progress::kPhases>& spent);

v1::StateSeconds ToStateSeconds(const progress::ExchangeClock& clock);

class FiguresKeeper {
 public:
  FiguresKeeper(int rank, progress::PhaseClock& phases) : phases_(phases) {
    figures_.set_rank(rank);
  }

  // Called before the first step.
  void Start();
  void StepEnded(int64_t step, double seconds);
  // Bytes: of the arena by the plan, of the arena in use, and the most that was seen of arena and
  // memory outside it (worker/trainer/memory_meter.h).
  void SetMemory(int64_t planned, int64_t used, int64_t peak);
  // Where the bytes that the rank has sent, and the time that its state took to travel, are asked
  // for from now on. The clock outlives the object.
  void ReadCommunication(std::function<v1::CommunicationBytes()> read) {
    communication_ = std::move(read);
  }
  void ReadExchanges(const progress::ExchangeClock& clock) { exchanges_ = &clock; }
  // Where the fall-backs of the rank's GPU are asked for; it returns none without a GPU.
  void ReadFallbacks(std::function<std::optional<v1::GpuFallbacks>()> read) {
    fallbacks_ = std::move(read);
  }

  // All current figures; none before the first step has ended.
  std::optional<v1::RankFigures> Now();
  // The same, but none if the last ones are younger than `interval`.
  std::optional<v1::RankFigures> NowAndThen(absl::Duration interval);

 private:
  progress::PhaseClock& phases_;
  std::function<v1::CommunicationBytes()> communication_;  // null: not connected yet
  const progress::ExchangeClock* exchanges_ = nullptr;     // null: not connected yet
  std::function<std::optional<v1::GpuFallbacks>()> fallbacks_;
  v1::RankFigures figures_;
  double processor_at_start_ = 0;
  absl::Time last_ = absl::InfinitePast();
};

}  // namespace tercio::trainer
