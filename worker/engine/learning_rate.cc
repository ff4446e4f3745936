#include <algorithm>
#include <cmath>
#include <numbers>

#include "worker/engine/training_engine.h"

namespace tercio::engine {
namespace {

// The share of peak - minimum that is left at `part` (0 to 1) of the way down.
double Remaining(v1::LearningRateSchedule kind, double part) {
  if (kind == v1::LEARNING_RATE_SCHEDULE_COSINE) return (1 + std::cos(std::numbers::pi * part)) / 2;
  return 1 - part;
}

}  // namespace

double LearningRate(const v1::TrainingSpec& training, int64_t step) {
  const v1::ScheduleSpec& schedule = training.schedule();
  const double peak = training.optimizer().learning_rate();
  const double minimum = schedule.min_learning_rate();
  const double warmup = static_cast<double>(schedule.warmup_steps());
  const double decay = static_cast<double>(schedule.decay_steps());
  const double k = static_cast<double>(step);
  // Steps begin with 1, so without warm-up nothing is divided by zero.
  if (k <= warmup) return peak * k / warmup;
  switch (schedule.kind()) {
    case v1::LEARNING_RATE_SCHEDULE_CONSTANT:
      return peak;
    case v1::LEARNING_RATE_SCHEDULE_INVERSE_SQUARE_ROOT:
      return std::max(minimum, peak * std::sqrt(std::max(1.0, warmup) / k));
    case v1::LEARNING_RATE_SCHEDULE_UNSPECIFIED:
    case v1::LEARNING_RATE_SCHEDULE_COSINE:
    case v1::LEARNING_RATE_SCHEDULE_LINEAR:
    case v1::LEARNING_RATE_SCHEDULE_WSD:
    case v1::LearningRateSchedule_INT_MIN_SENTINEL_DO_NOT_USE_:
    case v1::LearningRateSchedule_INT_MAX_SENTINEL_DO_NOT_USE_:
      break;
  }
  // Jobs may train on after the decay.
  if (k >= decay) return minimum;
  double start = warmup;
  if (schedule.kind() == v1::LEARNING_RATE_SCHEDULE_WSD) {
    // The decay takes whole steps and never begins within the warm-up.
    start = std::max(warmup, decay - std::floor(decay * schedule.decay_fraction()));
    if (k <= start) return peak;
  }
  return minimum + (peak - minimum) * Remaining(schedule.kind(), (k - start) / (decay - start));
}

}  // namespace tercio::engine
