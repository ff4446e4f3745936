#include "worker/engine/repeated_steps.h"

#include "gtest/gtest.h"

namespace tercio::engine {
namespace {

TEST(RecordsNow, InTheThirdStepIfTheOperationsAreReady) {
  int actions = 4;
  EXPECT_FALSE(RecordsNow(1, true, &actions));
  EXPECT_FALSE(RecordsNow(2, true, &actions));
  EXPECT_TRUE(RecordsNow(3, true, &actions));
  EXPECT_EQ(actions, 4);
}

TEST(RecordsNow, WaitsUntilTheOperationsAreReady) {
  int actions = 4;
  for (int64_t step = 3; step < 10; ++step) EXPECT_FALSE(RecordsNow(step, false, &actions));
  EXPECT_TRUE(RecordsNow(10, true, &actions));
  EXPECT_EQ(actions, 4);
}

TEST(RecordsNow, IsGivenUpWithAWarning) {
  int actions = 4;
  EXPECT_FALSE(RecordsNow(kMostStepsBeforeGraph - 1, false, &actions));
  EXPECT_EQ(actions, 4);
  testing::internal::CaptureStderr();
  EXPECT_FALSE(RecordsNow(kMostStepsBeforeGraph, false, &actions));
  EXPECT_NE(testing::internal::GetCapturedStderr().find("without a CUDA graph"), std::string::npos);
  EXPECT_EQ(actions, 0);
  // Nothing is left to record, and it is not reported again.
  EXPECT_FALSE(RecordsNow(kMostStepsBeforeGraph + 1, true, &actions));
}

}  // namespace
}  // namespace tercio::engine
