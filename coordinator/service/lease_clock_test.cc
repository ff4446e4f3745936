#include "coordinator/service/lease_clock.h"

#include "common/temp_dir.h"
#include "coordinator/service/coordinator.h"
#include "gtest/gtest.h"

namespace tercio::coordinator {
namespace {

constexpr double kHour = 3600;

TEST(LeaseClock, GoesOnByTheMonotonicClockWhateverTheWallClockDoes) {
  double wall = 1'000'000;
  double monotonic = 50;
  const LeaseClock clock([&] { return wall; }, [&] { return monotonic; });
  EXPECT_DOUBLE_EQ(clock.Now(), 1'000'000);
  for (const double jump : {-kHour, 24 * kHour, -30 * 24 * kHour}) {
    wall += jump;
    const double before = clock.Now();
    monotonic += 5;
    EXPECT_DOUBLE_EQ(clock.Now(), before + 5);
  }
  // The next coordinator begins with what the wall clock says then.
  EXPECT_DOUBLE_EQ(LeaseClock([&] { return wall; }, [&] { return monotonic; }).Now(), wall);
}

class JumpTest : public ::testing::Test {
 protected:
  // One node is attached; then `wall` changes and time passes by `seconds` of the monotonic clock.
  bool ConnectedAfter(double jump, double seconds) {
    auto store = Store::Open(directory_.path() + "/state.sqlite", OpenFor::kWriting);
    EXPECT_TRUE(store.ok()) << store.status();
    checkpoint::Store checkpoints(directory_.path() + "/checkpoints");
    Settings settings;
    settings.node_lease = 15;
    std::atomic<double> wall{1'000'000};
    std::atomic<double> monotonic{50};
    auto coordinator = Coordinator::Create(
        settings, *std::move(store), &checkpoints, OpenFor::kWriting,
        LeaseClock([&] { return wall.load(); }, [&] { return monotonic.load(); }));
    EXPECT_TRUE(coordinator.ok()) << coordinator.status();
    v1::AgentHello hello;
    hello.set_node("a");
    hello.set_devices(1);
    EXPECT_TRUE((*coordinator)->Attach(hello, {[](const auto&) {}, [] {}}).ok());
    // Answered when what came before is done.
    EXPECT_FALSE((*coordinator)->Ask(NodeChangeRequested{"nobody", NodeChange::kDrain}).ok());
    EXPECT_TRUE((*coordinator)->Nodes().at(0).state.connected);
    wall = wall + jump;
    monotonic = monotonic + seconds;
    EXPECT_FALSE((*coordinator)->Ask(NodeChangeRequested{"nobody", NodeChange::kDrain}).ok());
    EXPECT_FALSE((*coordinator)->Ask(CancelRequested{"nobody", false, ""}).ok());
    (*coordinator)->WaitForChange((*coordinator)->version(), 0.5);  // some ticks
    const NodeState& node = (*coordinator)->Nodes().at(0).state;
    return node.connected && !node.lost;
  }

  TempDir directory_;
};

TEST_F(JumpTest, NoNodeIsLostByIt) {
  EXPECT_TRUE(ConnectedAfter(24 * kHour, 5));
  EXPECT_TRUE(ConnectedAfter(-kHour, 5));
}

TEST_F(JumpTest, NoDeadNodeIsKeptByIt) { EXPECT_FALSE(ConnectedAfter(-kHour, 20)); }

}  // namespace
}  // namespace tercio::coordinator
