// What a step reads after roll backs, against a plain simulation of what was read before.
#include "plan/data_position.h"

#include <random>
#include <set>
#include <vector>

#include "gtest/gtest.h"

namespace tercio::plan {
namespace {

TEST(DataPosition, WithoutRollBacksStepAndBatchAreOne) {
  v1::TrainingSpec training;
  training.set_global_batch(12);
  for (int64_t step = 1; step < 50; ++step) {
    EXPECT_EQ(BatchOfStep(training, step), step);
    EXPECT_EQ(FirstSampleOfStep(training, step), (step - 1) * 12);
  }
}

TEST(DataPosition, GoesOnAfterTheBadBatch) {
  v1::TrainingSpec training;
  training.set_global_batch(4);
  SkipSpike(40, 50, &training);
  EXPECT_EQ(BatchOfStep(training, 40), 40);
  EXPECT_EQ(BatchOfStep(training, 41), 51);
  EXPECT_EQ(FirstSampleOfStep(training, 41), 200);
  SkipSpike(40, 45, &training);  // batch 55 was bad, too
  EXPECT_EQ(BatchOfStep(training, 41), 56);
  ASSERT_EQ(training.data_skips_size(), 1);
  EXPECT_EQ(training.data_skips(0).after_step(), 40);
  EXPECT_EQ(training.data_skips(0).batches(), 15);
}

TEST(DataPosition, FurtherBackThanTheLastTime) {
  v1::TrainingSpec training;
  SkipSpike(40, 50, &training);
  SkipSpike(30, 45, &training);  // the checkpoint of step 40 is damaged: 31 to 55 are gone over
  EXPECT_EQ(BatchOfStep(training, 30), 30);
  EXPECT_EQ(BatchOfStep(training, 31), 56);
  EXPECT_EQ(BatchOfStep(training, 41), 66);
  ASSERT_EQ(training.data_skips_size(), 1);
}

TEST(DataPosition, WhatWasGoneOverLaterStaysSo) {
  v1::TrainingSpec training;
  SkipSpike(40, 50, &training);  // 41 to 50
  SkipSpike(30, 35, &training);  // started again from step 30; 31 to 35, too
  EXPECT_EQ(BatchOfStep(training, 31), 36);
  EXPECT_EQ(BatchOfStep(training, 35), 40);
  EXPECT_EQ(BatchOfStep(training, 36), 51);
}

TEST(DataPosition, NoBadBatchIsEverReadAgain) {
  const uint32_t seed = 7;
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 200; ++round) {
    v1::TrainingSpec training;
    std::set<int64_t> bad;
    int64_t least = 0;
    for (int i = 0; i < 6; ++i) {
      const int64_t resume = least + static_cast<int64_t>(random() % 20);
      const int64_t step = resume + 1 + static_cast<int64_t>(random() % 20);
      least = random() % 2 == 0 ? resume : resume / 2;
      bad.insert(BatchOfStep(training, step));
      const int64_t next = BatchOfStep(training, step + 1);
      std::vector<int64_t> before;
      for (int64_t k = 1; k <= resume; ++k) before.push_back(BatchOfStep(training, k));
      SkipSpike(resume, step, &training);
      for (int64_t k = 1; k <= resume; ++k) {
        EXPECT_EQ(BatchOfStep(training, k), before[static_cast<size_t>(k - 1)]);
      }
      EXPECT_EQ(BatchOfStep(training, resume + 1), next);
      for (int64_t k = resume + 1; k < resume + 100; ++k) {
        EXPECT_FALSE(bad.contains(BatchOfStep(training, k)));
        EXPECT_LT(BatchOfStep(training, k), BatchOfStep(training, k + 1));
      }
    }
  }
}

}  // namespace
}  // namespace tercio::plan
