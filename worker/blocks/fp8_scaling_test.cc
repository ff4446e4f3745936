#include "worker/blocks/fp8_scaling.h"

#include <limits>
#include <vector>

#include "gtest/gtest.h"

namespace tercio::blocks {
namespace {

constexpr int kSlots = plan::kFp8SlotsOfLayer;
constexpr int kInput = plan::Fp8Slot(2, plan::Fp8Role::kInput);
constexpr int kGradient = plan::Fp8Slot(2, plan::Fp8Role::kGradient);

std::vector<float> All(float value, int slots = kSlots) {
  return std::vector<float>(static_cast<size_t>(slots), value);
}
kernels::Scale ScaleOf(const Fp8Scaling& scaling, int slot) {
  return scaling.Scales()[static_cast<size_t>(slot)];
}

TEST(Fp8Scaling, FollowsTheLargestOfTheLastSteps) {
  Fp8Scaling scaling(1);
  EXPECT_FALSE(scaling.Knows(kInput));
  EXPECT_EQ(ScaleOf(scaling, kInput).multiplier, 1.0f);
  scaling.Record(All(7));
  EXPECT_TRUE(scaling.Knows(kInput));
  EXPECT_EQ(ScaleOf(scaling, kInput).multiplier, 64.0f);       // 448 / 7
  EXPECT_EQ(ScaleOf(scaling, kGradient).multiplier, 8192.0f);  // 57344 / 7
  EXPECT_EQ(ScaleOf(scaling, kGradient).inverse, 1.0f / 8192);
  scaling.Record(All(1));
  EXPECT_EQ(ScaleOf(scaling, kInput).multiplier, 64.0f);
  scaling.Record(All(14.5f));
  EXPECT_EQ(ScaleOf(scaling, kInput).multiplier, 16.0f);
  for (int step = 1; step < plan::kFp8History; ++step) scaling.Record(All(1));
  EXPECT_EQ(ScaleOf(scaling, kInput).multiplier, 16.0f);
  scaling.Record(All(1));  // the 16th since
  EXPECT_EQ(ScaleOf(scaling, kInput).multiplier, 256.0f);
}

// The largest of all ranks counts; where one of them is bad, the slot stays as it is.
TEST(Fp8Scaling, TakesTheLargestOfAllRanksAndNoBadNumbers) {
  Fp8Scaling scaling(1);
  std::vector<float> ranks = All(1, 3 * kSlots);
  ranks[kSlots + kInput] = 100;
  scaling.Record(ranks);
  EXPECT_EQ(ScaleOf(scaling, kInput).multiplier, 4.0f);
  EXPECT_EQ(ScaleOf(scaling, kInput + 2).multiplier, 256.0f);
  const std::vector<float> before(scaling.state(0).begin(), scaling.state(0).end());
  for (const float bad :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    ranks[2 * kSlots + kInput] = bad;
    scaling.Record(ranks);
  }
  EXPECT_EQ(scaling.state(0)[kInput * plan::kFp8History + 1], 0);
  EXPECT_EQ(scaling.state(0)[kGradient * plan::kFp8History + 2], 1);
  EXPECT_EQ(ScaleOf(scaling, kInput).multiplier, 4.0f);
  scaling.Record(All(0));
  EXPECT_TRUE(scaling.Knows(kInput));
  EXPECT_EQ(ScaleOf(scaling, kInput).multiplier, 4.0f);
}

TEST(Fp8Scaling, IsRestoredByLayer) {
  Fp8Scaling one(2);
  std::vector<float> largest = All(3, 2 * kSlots);
  largest[kSlots + 1] = 9;
  one.Record(largest);
  one.Record(All(2, 2 * kSlots));
  Fp8Scaling other(2);
  ASSERT_TRUE(other.Restore(1, one.state(1)).ok());
  EXPECT_EQ(other.state(1), one.state(1));
  EXPECT_FALSE(other.Knows(0));
  EXPECT_TRUE(other.Knows(kSlots));
  EXPECT_EQ(other.Restore(0, one.state(1).subspan(1)).code(), absl::StatusCode::kInvalidArgument);
  std::vector<float> bad(one.state(0).begin(), one.state(0).end());
  bad[4] = -1;
  EXPECT_EQ(other.Restore(0, bad).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(other.Knows(0));
}

}  // namespace
}  // namespace tercio::blocks
