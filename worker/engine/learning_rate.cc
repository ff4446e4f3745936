#include <algorithm>
#include <cmath>
#include <numbers>

#include "worker/engine/training_engine.h"

namespace tercio::engine {
namespace {

// The share of peak - minimum that is left at `part` (0 to 1) of the way down.
double Remaining(const std::string& kind, double part) {
  if (kind == "cosine") return (1 + std::cos(std::numbers::pi * part)) / 2;
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
  if (k <= warmup) return peak * k / warmup;
  if (schedule.kind() == "constant") return peak;
  if (schedule.kind() == "inverse_square_root") {
    return std::max(minimum, peak * std::sqrt(std::max(1.0, warmup) / k));
  }
  if (k >= decay) return minimum;
  double start = warmup;
  if (schedule.kind() == "wsd") {
    start = std::max(warmup, decay - std::floor(decay * schedule.decay_fraction()));
    if (k <= start) return peak;
  }
  return minimum + (peak - minimum) * Remaining(schedule.kind(), (k - start) / (decay - start));
}

}  // namespace tercio::engine
