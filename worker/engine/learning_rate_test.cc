// The learning rate at the corners of every schedule.
#include <cmath>

#include "gtest/gtest.h"
#include "worker/engine/training_engine.h"

namespace tercio::engine {
namespace {

v1::TrainingSpec Training(const char* kind) {
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
  for (const char* kind : {"constant", "cosine", "linear", "wsd", "inverse_square_root"}) {
    EXPECT_DOUBLE_EQ(LearningRate(Training(kind), 1), 0.1) << kind;
    EXPECT_DOUBLE_EQ(LearningRate(Training(kind), 10), 1.0) << kind;
  }
}

TEST(LearningRate, FallsAsItsKindSays) {
  EXPECT_DOUBLE_EQ(LearningRate(Training("constant"), 100), 1.0);
  EXPECT_NEAR(LearningRate(Training("cosine"), 50), 0.55, 1e-12);
  EXPECT_NEAR(LearningRate(Training("cosine"), 30), 0.1 + 0.45 * (1 + std::sqrt(0.5)), 1e-12);
  EXPECT_NEAR(LearningRate(Training("linear"), 50), 0.55, 1e-12);
  EXPECT_NEAR(LearningRate(Training("linear"), 30), 0.775, 1e-12);
  EXPECT_DOUBLE_EQ(LearningRate(Training("wsd"), 45), 1.0);
  EXPECT_NEAR(LearningRate(Training("wsd"), 63), 0.64, 1e-12);
  EXPECT_DOUBLE_EQ(LearningRate(Training("inverse_square_root"), 40), 0.5);
  EXPECT_DOUBLE_EQ(LearningRate(Training("inverse_square_root"), 100'000), 0.1);
  for (const char* kind : {"cosine", "linear", "wsd"}) {
    EXPECT_DOUBLE_EQ(LearningRate(Training(kind), 90), 0.1) << kind;
    EXPECT_DOUBLE_EQ(LearningRate(Training(kind), 95), 0.1) << kind;
  }
}

TEST(LearningRate, WithoutWarmUp) {
  v1::TrainingSpec training = Training("inverse_square_root");
  training.mutable_schedule()->set_warmup_steps(0);
  EXPECT_DOUBLE_EQ(LearningRate(training, 1), 1.0);
  EXPECT_DOUBLE_EQ(LearningRate(training, 4), 0.5);
}

}  // namespace
}  // namespace tercio::engine
