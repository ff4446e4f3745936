#include "coordinator/service/coordinator.h"

#include <atomic>
#include <set>

#include "common/temp_dir.h"
#include "coordinator/core/test_job.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::coordinator {
namespace {

using ::testing::MatchesRegex;

TEST(TokenSource, GivesEveryTokenOnce) {
  TokenSource source;
  std::set<std::string> tokens;
  std::set<std::string> halves;  // a byte that is given out twice is in two of them
  for (int i = 0; i < 1000; ++i) {
    const std::string token = source.Next();
    EXPECT_THAT(token, MatchesRegex("[0-9a-f]+"));
    EXPECT_EQ(token.size(), 32u);
    tokens.insert(token);
    halves.insert(token.substr(0, 16));
    halves.insert(token.substr(16));
  }
  EXPECT_EQ(tokens.size(), 1000u);
  EXPECT_EQ(halves.size(), 2000u);
}

// A node of another machine may be given its name only then.
class MayBeHereTest : public ::testing::Test {
 protected:
  void Start() {
    coordinator_.reset();
    auto store = Store::Open(directory_.path() + "/state.sqlite", /*read_only=*/false);
    ASSERT_TRUE(store.ok()) << store.status();
    const auto time = [this] { return now_.load(); };
    auto made = Coordinator::Create(PlanningSettings(), *std::move(store), &checkpoints_,
                                    /*read_only=*/false, LeaseClock(time, time));
    ASSERT_TRUE(made.ok()) << made.status();
    coordinator_ = *std::move(made);
  }
  int64_t Attach() {
    v1::AgentHello hello;
    hello.set_node("one");
    hello.set_spool_id("spool");
    const auto stream = coordinator_->Attach(hello, {[](v1::CoordinatorMessage) {}, [] {}});
    Settle();
    return stream.value();
  }
  // Everything said before is decided upon.
  void Settle() { ASSERT_TRUE(coordinator_->Ask(Tick{}).ok()); }
  void Pass(double seconds) {
    now_ = now_ + seconds;
    Settle();
  }

  TempDir directory_;
  checkpoint::Store checkpoints_{directory_.path() + "/checkpoints"};
  std::atomic<double> now_ = 1e9;
  std::unique_ptr<Coordinator> coordinator_;
};

TEST_F(MayBeHereTest, UntilANodeLeaves) {
  Start();
  EXPECT_EQ(coordinator_->MayBeHere("one"), std::nullopt);
  const int64_t stream = Attach();
  EXPECT_EQ(coordinator_->MayBeHere("one"), true);
  v1::AgentMessage leaving;
  leaving.mutable_leaving()->set_grace_seconds(20);
  ASSERT_TRUE(coordinator_->Ask(NodeSaid{"one", leaving}).ok());
  EXPECT_EQ(coordinator_->MayBeHere("one"), true);
  coordinator_->Detach("one", stream);
  Settle();
  EXPECT_EQ(coordinator_->MayBeHere("one"), false);
}

TEST_F(MayBeHereTest, UntilItIsNotHeardOfForALease) {
  const double lease = Settings().node_lease;
  Start();
  coordinator_->Detach("one", Attach());
  Pass(lease / 2);
  EXPECT_EQ(coordinator_->MayBeHere("one"), true);
  Pass(lease);
  EXPECT_EQ(coordinator_->MayBeHere("one"), false);
  // Nor could it come back while the coordinator was away.
  Start();
  EXPECT_EQ(coordinator_->MayBeHere("one"), true);
  Pass(lease + 1);
  EXPECT_EQ(coordinator_->MayBeHere("one"), false);
}

}  // namespace
}  // namespace tercio::coordinator
