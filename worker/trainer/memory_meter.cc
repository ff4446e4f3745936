#include "worker/trainer/memory_meter.h"

#include <algorithm>

namespace tercio::trainer {

MemoryMeter::MemoryMeter(device::Device& device)
    : device_(device), before_(device.BytesInUse().value_or(0)) {}

void MemoryMeter::Measure(const engine::TrainingEngine& engine, int64_t steps) {
  if (steps >= next_look_) {
    // Looking at the arena takes long, so it is done after 1, 2, 4, 8 ... steps.
    next_look_ = std::max<int64_t>(1, 2 * steps);
    return MeasureAll(engine);
  }
  const absl::StatusOr<int64_t> now = device_.BytesInUse();
  // What was in use before the training belongs to others, or to the program itself.
  if (now.ok()) peak_ = std::max(peak_, *now - before_);
}

void MemoryMeter::MeasureAll(const engine::TrainingEngine& engine) {
  const absl::StatusOr<int64_t> now = device_.BytesInUse();
  used_ = engine.used_bytes();
  peak_ = std::max(peak_, used_);
  if (!now.ok()) return;
  peak_ = std::max(peak_, *now - before_);
  // Both numbers were taken at the same moment, so growth in between does not count as outside.
  outside_ = std::max(outside_, *now - before_ - used_);
}

}  // namespace tercio::trainer
