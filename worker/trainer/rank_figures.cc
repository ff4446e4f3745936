#include "worker/trainer/rank_figures.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/file.h"
#include "common/steady_time.h"

namespace tercio::trainer {

namespace {

int64_t NumberOf(absl::string_view text) {
  int64_t number = 0;
  return absl::SimpleAtoi(text, &number) ? number : 0;
}

}  // namespace

// proc(5): the second number of statm, in pages.
int64_t ResidentBytes() {
  const absl::StatusOr<std::string> text = ReadFile("/proc/self/statm");
  if (!text.ok()) return 0;
  const size_t space = text->find(' ');
  return space == std::string::npos
             ? 0
             : std::strtoll(text->c_str() + space, nullptr, 10) * sysconf(_SC_PAGESIZE);
}

// proc(5): lines "read_bytes: N" and "write_bytes: N" among others.
DiskBytes BytesOfDisks() {
  const absl::StatusOr<std::string> text = ReadFile("/proc/self/io");
  DiskBytes bytes;
  if (!text.ok()) return bytes;
  for (const absl::string_view line : absl::StrSplit(*text, '\n')) {
    const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(line, ": ");
    if (parts.first == "read_bytes") bytes.read = NumberOf(parts.second);
    if (parts.first == "write_bytes") bytes.written = NumberOf(parts.second);
  }
  return bytes;
}

// Threads that have ended are included.
double ProcessorSeconds() {
  rusage usage = {};
  if (getrusage(RUSAGE_SELF, &usage) != 0) return 0;
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

v1::PhaseSeconds ToPhaseSeconds(
    const std::array<progress::PhaseClock::Nanoseconds, progress::kPhases>& spent) {
  const auto of = [&](progress::Phase phase) {
    return progress::PhaseClock::Seconds(spent[static_cast<size_t>(phase)]);
  };
  v1::PhaseSeconds seconds;
  seconds.set_forward(of(progress::Phase::kForward));
  seconds.set_backward(of(progress::Phase::kBackward));
  seconds.set_wait(of(progress::Phase::kWait));
  seconds.set_optimizer(of(progress::Phase::kOptimizer));
  seconds.set_data(of(progress::Phase::kData));
  seconds.set_checkpoint(of(progress::Phase::kCheckpoint));
  seconds.set_evaluation(of(progress::Phase::kEvaluation));
  seconds.set_other(of(progress::Phase::kOther));
  return seconds;
}

v1::StateSeconds ToStateSeconds(const progress::ExchangeClock& clock) {
  using Clock = progress::ExchangeClock;
  v1::StateSeconds seconds;
  seconds.set_gather(clock.taken(Clock::kGather));
  seconds.set_gather_waited(clock.waited(Clock::kGather));
  seconds.set_reduce(clock.taken(Clock::kReduce));
  seconds.set_reduce_waited(clock.waited(Clock::kReduce));
  return seconds;
}

void FiguresKeeper::Start() {
  phases_.Start();
  // Connecting and loading are no part of the time that the phases divide.
  processor_at_start_ = ProcessorSeconds();
}

void FiguresKeeper::StepEnded(int64_t step, double seconds) {
  figures_.set_step(step);
  // Steps are counted by this process; a resumed run begins with a higher number.
  figures_.set_steps(figures_.steps() + 1);
  figures_.set_step_seconds(seconds);
}

void FiguresKeeper::SetMemory(int64_t planned, int64_t used, int64_t peak) {
  figures_.set_planned_bytes(planned);
  figures_.set_used_bytes(used);
  figures_.set_peak_bytes(peak);
}

std::optional<v1::RankFigures> FiguresKeeper::Now() {
  // A rank that has not finished a step has nothing to report about the run.
  if (figures_.steps() == 0) return std::nullopt;
  // NowAndThen waits for its interval after these figures as well.
  last_ = SteadyNow();
  const auto& spent = phases_.Read();
  progress::PhaseClock::Nanoseconds elapsed = 0;
  // The sum of the parts is taken instead of a clock, so that they add up to it exactly.
  for (const progress::PhaseClock::Nanoseconds part : spent) elapsed += part;
  *figures_.mutable_phases() = ToPhaseSeconds(spent);
  figures_.set_elapsed_seconds(progress::PhaseClock::Seconds(elapsed));
  figures_.set_cpu_seconds(ProcessorSeconds() - processor_at_start_);
  figures_.set_resident_bytes(ResidentBytes());
  const DiskBytes disks = BytesOfDisks();
  figures_.set_disk_read_bytes(disks.read);
  figures_.set_disk_written_bytes(disks.written);
  if (communication_) *figures_.mutable_communication() = communication_();
  if (exchanges_ != nullptr) *figures_.mutable_state() = ToStateSeconds(*exchanges_);
  if (fallbacks_) {
    if (const auto counts = fallbacks_(); counts) *figures_.mutable_gpu_fallbacks() = *counts;
  }
  return figures_;
}

std::optional<v1::RankFigures> FiguresKeeper::NowAndThen(absl::Duration interval) {
  // They cost a file and some system calls, which short steps would notice.
  if (SteadyNow() - last_ < interval) return std::nullopt;
  return Now();
}

}  // namespace tercio::trainer
