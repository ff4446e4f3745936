#include <cmath>
#include <numbers>

#include "worker/engine/training_engine.h"

namespace tercio {

double LearningRate(const v1::TrainingSpec& training, int64_t step) {
  const v1::ScheduleSpec& schedule = training.schedule();
  const double peak = training.optimizer().learning_rate();
  const double minimum = schedule.min_learning_rate();
  const double warmup = static_cast<double>(schedule.warmup_steps());
  const double decay = static_cast<double>(schedule.decay_steps());
  const double k = static_cast<double>(step);
  if (k <= warmup) return peak * k / warmup;
  if (schedule.kind() == "constant") return peak;
  if (k >= decay) return minimum;
  const double angle = std::numbers::pi * (k - warmup) / (decay - warmup);
  return minimum + (peak - minimum) / 2 * (1 + std::cos(angle));
}

}  // namespace tercio
