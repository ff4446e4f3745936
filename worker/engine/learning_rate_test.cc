// The learning rate at the corners of every schedule.
#include <cmath>

#include "gtest/gtest.h"
#include "worker/engine/training_engine.h"

namespace tercio::engine {
namespace {

v1::TrainingSpec Training(v1::LearningRateSchedule kind) {
  v1::TrainingSpec training;
  training.set_steps(100);
  training.mutable_optimizer()->set_learning_rate(1.0);
  training.mutable_schedule()->set_kind(kind);
  training.mutable_schedule()->set_warmup_steps(10);
  training.mutable_schedule()->set_min_learning_rate(0.1);
  training.mutable_schedule()->set_decay_steps(90);
  training.mutable_schedule()->set_decay_fraction(0.5);
  return training;
}

TEST(LearningRate, WarmsUpLinearlyInEveryKind) {
  for (const v1::LearningRateSchedule kind :
       {v1::LEARNING_RATE_SCHEDULE_CONSTANT, v1::LEARNING_RATE_SCHEDULE_COSINE,
        v1::LEARNING_RATE_SCHEDULE_LINEAR, v1::LEARNING_RATE_SCHEDULE_WSD,
        v1::LEARNING_RATE_SCHEDULE_INVERSE_SQUARE_ROOT}) {
    EXPECT_DOUBLE_EQ(LearningRate(Training(kind), 1), 0.1) << kind;
    EXPECT_DOUBLE_EQ(LearningRate(Training(kind), 10), 1.0) << kind;
  }
}

TEST(LearningRate, FallsAsItsKindSays) {
  EXPECT_DOUBLE_EQ(LearningRate(Training(v1::LEARNING_RATE_SCHEDULE_CONSTANT), 100), 1.0);
  EXPECT_NEAR(LearningRate(Training(v1::LEARNING_RATE_SCHEDULE_COSINE), 50), 0.55, 1e-12);
  EXPECT_NEAR(LearningRate(Training(v1::LEARNING_RATE_SCHEDULE_COSINE), 30),
              0.1 + 0.45 * (1 + std::sqrt(0.5)), 1e-12);
  EXPECT_NEAR(LearningRate(Training(v1::LEARNING_RATE_SCHEDULE_LINEAR), 50), 0.55, 1e-12);
  EXPECT_NEAR(LearningRate(Training(v1::LEARNING_RATE_SCHEDULE_LINEAR), 30), 0.775, 1e-12);
  EXPECT_DOUBLE_EQ(LearningRate(Training(v1::LEARNING_RATE_SCHEDULE_WSD), 45), 1.0);
  EXPECT_NEAR(LearningRate(Training(v1::LEARNING_RATE_SCHEDULE_WSD), 63), 0.64, 1e-12);
  EXPECT_DOUBLE_EQ(LearningRate(Training(v1::LEARNING_RATE_SCHEDULE_INVERSE_SQUARE_ROOT), 40), 0.5);
  EXPECT_DOUBLE_EQ(LearningRate(Training(v1::LEARNING_RATE_SCHEDULE_INVERSE_SQUARE_ROOT), 100'000),
                   0.1);
  for (const v1::LearningRateSchedule kind :
       {v1::LEARNING_RATE_SCHEDULE_COSINE, v1::LEARNING_RATE_SCHEDULE_LINEAR,
        v1::LEARNING_RATE_SCHEDULE_WSD}) {
    EXPECT_DOUBLE_EQ(LearningRate(Training(kind), 90), 0.1) << kind;
    EXPECT_DOUBLE_EQ(LearningRate(Training(kind), 95), 0.1) << kind;
  }
}

TEST(LearningRate, WithoutWarmUp) {
  v1::TrainingSpec training = Training(v1::LEARNING_RATE_SCHEDULE_INVERSE_SQUARE_ROOT);
  training.mutable_schedule()->set_warmup_steps(0);
  EXPECT_DOUBLE_EQ(LearningRate(training, 1), 1.0);
  EXPECT_DOUBLE_EQ(LearningRate(training, 4), 0.5);
}

}  // namespace
}  // namespace tercio::engine
