#include "plan/epochs.h"

#include <limits>
#include <vector>

#include "gtest/gtest.h"

namespace tercio::plan {
namespace {

std::vector<int64_t> EvaluatedSteps(const v1::TrainingSpec& training, int64_t samples) {
  std::vector<int64_t> steps;
  for (int64_t step = 1; step <= training.steps(); ++step) {
    if (EvaluatesAfter(training, samples, step)) steps.push_back(step);
  }
  return steps;
}

TEST(EpochsTest, TheLastSampleFallsIntoTheLastStep) {
  EXPECT_EQ(StepsOfEpochs(3, 100, 20), 15);
  EXPECT_EQ(StepsOfEpochs(3, 101, 20), 16);
  EXPECT_EQ(StepsOfEpochs(1, 5, 20), 1);
  EXPECT_EQ(StepsOfEpochs(std::numeric_limits<int64_t>::max(), 1000, 1),
            std::numeric_limits<int64_t>::max());
}

TEST(EpochsTest, AnEpochEndsWithTheStepOfItsLastSample) {
  v1::TrainingSpec training;
  training.set_global_batch(20);
  // 50 samples: the third step holds the last ten of the first epoch and ten of the second.
  EXPECT_EQ(EpochsEndedBy(training, 50, 0), 0);
  EXPECT_EQ(EpochsEndedBy(training, 50, 2), 0);
  EXPECT_EQ(EpochsEndedBy(training, 50, 3), 1);
  EXPECT_EQ(EpochsEndedBy(training, 50, 5), 2);
  // A batch may hold several epochs.
  EXPECT_EQ(EpochsEndedBy(training, 7, 1), 2);
}

TEST(EpochsTest, EvaluationsByEpochsAndSteps) {
  v1::TrainingSpec training;
  training.set_global_batch(20);
  training.set_steps(12);
  EXPECT_EQ(EvaluatedSteps(training, 50), (std::vector<int64_t>{12}));
  training.mutable_evaluate()->set_every_epochs(1);
  EXPECT_EQ(EvaluatedSteps(training, 50), (std::vector<int64_t>{3, 5, 8, 10, 12}));
  training.mutable_evaluate()->set_every_epochs(2);
  EXPECT_EQ(EvaluatedSteps(training, 50), (std::vector<int64_t>{5, 10, 12}));
  EXPECT_EQ(EvaluatedSteps(training, 0), (std::vector<int64_t>{12}));
  training.mutable_evaluate()->set_every_steps(4);
  EXPECT_EQ(EvaluatedSteps(training, 50), (std::vector<int64_t>{4, 5, 8, 10, 12}));
}

TEST(EpochsTest, StepsAreSetOnceTheSamplesAreKnown) {
  v1::TrainingSpec training;
  training.set_global_batch(20);
  training.set_epochs(3);
  EXPECT_FALSE(KnowsSteps(training));
  SetStepsOfEpochs(101, &training);
  EXPECT_TRUE(KnowsSteps(training));
  EXPECT_EQ(training.steps(), 16);
  EXPECT_EQ(training.schedule().decay_steps(), 16);
  // Longer: the schedule stays.
  training.set_epochs(6);
  SetStepsOfEpochs(101, &training);
  EXPECT_EQ(training.steps(), 31);
  EXPECT_EQ(training.schedule().decay_steps(), 16);
  v1::TrainingSpec of_steps;
  of_steps.set_global_batch(20);
  of_steps.set_steps(7);
  SetStepsOfEpochs(101, &of_steps);
  EXPECT_EQ(of_steps.steps(), 7);
  EXPECT_EQ(of_steps.schedule().decay_steps(), 0);
  // A job that only evaluates has no steps, and that is known.
  EXPECT_TRUE(KnowsSteps(v1::TrainingSpec()));
}

TEST(EpochsTest, SkippedBatchesCountAsRead) {
  v1::TrainingSpec training;
  training.set_global_batch(20);
  v1::DataSkip* skip = training.add_data_skips();
  skip->set_after_step(1);
  skip->set_batches(2);
  EXPECT_EQ(EpochsEndedBy(training, 50, 1), 0);
  EXPECT_EQ(EpochsEndedBy(training, 50, 2), 1);
}

}  // namespace
}  // namespace tercio::plan
