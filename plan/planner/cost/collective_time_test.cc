#include "plan/planner/cost/collective_time.h"

#include "gtest/gtest.h"

namespace tercio::plan::cost {
namespace {

constexpr double kMega = 1 << 20;

CollectiveTime Selene(int nodes) {
  return {MakeCluster(*AcceleratorOf("A100-80"), 8, nodes, 8, 25e9), Constants{}};
}

// What NCCL calls bus bandwidth.
double BusBandwidth(double bytes, int size, double seconds) {
  return 2.0 * (size - 1) / size * bytes / seconds;
}

TEST(CollectiveTime, InsideANodeLargeSumsReachTheLinks) {
  const double seconds = Selene(1).AllReduce({8, 1}, 256 * kMega);
  EXPECT_NEAR(BusBandwidth(256 * kMega, 8, seconds), 0.78 * 300e9, 10e9);
  EXPECT_LT(BusBandwidth(kMega, 8, Selene(1).AllReduce({8, 1}, kMega)), 60e9);
}

// Four nodes of eight A100 (stas00/ml-engineering): 17 GB/s at 1 MiB, 69 at 8 MiB, 92 at 256 MiB
// and more, over a network of 100 GB/s a node.
TEST(CollectiveTime, SumsOverNodesHaveTheMeasuredBandwidthBySize) {
  const CollectiveTime time(MakeCluster(*AcceleratorOf("A100-80"), 8, 4, 4, 25e9), Constants{});
  const auto bandwidth = [&](double bytes) {
    return BusBandwidth(bytes, 32, time.AllReduce({32, 1}, bytes)) / 1e9;
  };
  EXPECT_NEAR(bandwidth(kMega), 17, 6);
  EXPECT_NEAR(bandwidth(8 * kMega), 69, 25);
  EXPECT_NEAR(bandwidth(512 * kMega), 92, 10);
}

TEST(CollectiveTime, DevicesOfANodeShareItsInterfaces) {
  const CollectiveTime time = Selene(16);
  // Eight groups of one device on each node have an interface each; one group has all eight.
  const double shared = time.AllReduce({16, 8}, 512 * kMega);
  const double alone = time.AllReduce({128, 1}, 512 * kMega);
  EXPECT_GT(shared, 3 * alone);
  EXPECT_EQ(time.AllReduce({1, 8}, kMega), 0);
}

TEST(CollectiveTime, SumsAreTheirTwoHalves) {
  const CollectiveTime time = Selene(1);
  EXPECT_DOUBLE_EQ(time.AllReduce({8, 1}, kMega),
                   time.AllGather({8, 1}, kMega) + time.ReduceScatter({8, 1}, kMega));
}

TEST(CollectiveTime, RingsOfManyRanksAreBoundByLatency) {
  const CollectiveTime time = Selene(128);
  const double seconds = time.AllGather({1024, 1}, kMega);
  EXPECT_GT(seconds, 1023 * 10e-6);
  // Trees are not.
  EXPECT_LT(time.AllReduce({1024, 1}, kMega), 1e-3);
}

TEST(CollectiveTime, MessagesBetweenStagesLeaveTheNodeWhereStagesDo) {
  const CollectiveTime time = Selene(2);
  const double inside = time.Transfer(1, 8, 32 * kMega);
  const double between = time.Transfer(8, 2, 32 * kMega);
  EXPECT_GT(between, 5 * inside);
  EXPECT_EQ(time.Transfer(8, 1, kMega), 0);
}

}  // namespace
}  // namespace tercio::plan::cost
