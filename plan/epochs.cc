#include "plan/epochs.h"

#include <limits>

#include "common/check.h"
#include "plan/data_position.h"

namespace tercio::plan {

int64_t StepsOfEpochs(int64_t epochs, int64_t samples, int64_t global_batch) {
  TERCIO_CHECK(epochs >= 1 && samples >= 1 && global_batch >= 1);
  // Job files are not trusted: the product of two of their numbers may not fit.
  int64_t all = 0;
  if (__builtin_mul_overflow(epochs, samples, &all)) all = std::numeric_limits<int64_t>::max();
  return all / global_batch + (all % global_batch > 0 ? 1 : 0);
}

bool KnowsSteps(const v1::TrainingSpec& training) {
  return training.steps() > 0 || training.epochs() <= 0;
}

void SetStepsOfEpochs(int64_t samples, v1::TrainingSpec* training) {
  if (training->epochs() <= 0) return;
  training->set_steps(StepsOfEpochs(training->epochs(), samples, training->global_batch()));
  // A job that is lengthened keeps the schedule that it was submitted with.
  if (training->schedule().decay_steps() == 0) {
    training->mutable_schedule()->set_decay_steps(training->steps());
  }
}

int64_t EpochsEndedBy(const v1::TrainingSpec& training, int64_t samples, int64_t step) {
  TERCIO_CHECK_GE(samples, 1);
  if (step < 1) return 0;
  return BatchOfStep(training, step) * training.global_batch() / samples;
}

bool EvaluatesAfter(const v1::TrainingSpec& training, int64_t samples, int64_t step) {
  if (step == training.steps()) return true;
  const int64_t steps = training.evaluate().every_steps();
  if (steps > 0 && step % steps == 0) return true;
  const int64_t epochs = training.evaluate().every_epochs();
  if (epochs <= 0 || samples <= 0) return false;
  return EpochsEndedBy(training, samples, step) / epochs >
         EpochsEndedBy(training, samples, step - 1) / epochs;
}

}  // namespace tercio::plan
