#include "plan/data_position.h"

#include "common/check.h"

namespace tercio::plan {

int64_t BatchOfStep(const v1::TrainingSpec& training, int64_t step) {
  // Skips are stored by the step after which they were made, so that earlier steps keep their data.
  int64_t batch = step;
  for (const v1::DataSkip& skip : training.data_skips()) {
    if (skip.after_step() < step) batch += skip.batches();
  }
  return batch;
}

int64_t FirstSampleOfStep(const v1::TrainingSpec& training, int64_t step) {
  return (BatchOfStep(training, step) - 1) * training.global_batch();
}

void SkipSpike(int64_t resume_step, int64_t bad_step, v1::TrainingSpec* training) {
  TERCIO_CHECK(resume_step >= 0 && resume_step < bad_step);
  v1::TrainingSpec changed;
  for (const v1::DataSkip& skip : training->data_skips()) {
    if (skip.after_step() < resume_step) *changed.add_data_skips() = skip;
  }
  v1::DataSkip* fresh = changed.add_data_skips();
  fresh->set_after_step(resume_step);
  // The next batch is the one that would have followed the bad step:
  // everything in between is skipped, whether it was read or not.
  fresh->set_batches(BatchOfStep(*training, bad_step + 1) - 1 - BatchOfStep(changed, resume_step));
  for (const v1::DataSkip& skip : training->data_skips()) {
    if (skip.after_step() <= bad_step) continue;
    v1::DataSkip* later = changed.add_data_skips();
    // Later skips move with the steps they follow, since the run is now that many steps behind.
    later->set_after_step(skip.after_step() - (bad_step - resume_step));
    later->set_batches(skip.batches());
  }
  training->mutable_data_skips()->Swap(changed.mutable_data_skips());
}

}  // namespace tercio::plan
