#include "worker/agent/runs/shared_rendezvous.h"

#include <atomic>
#include <thread>

#include "common/steady_time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::agent {
namespace {

using ::testing::ElementsAre;
using Keys = SharedRendezvous::Keys;
using Values = SharedRendezvous::Values;

const SharedRendezvous::Run kRun{"job", 1, "secret"};
const SharedRendezvous::Caller kPatient{absl::InfiniteFuture(), [] { return false; }};

// A coordinator that answers when it is let.
class Coordinator {
 public:
  SharedRendezvous::Ask Ask() {
    return [this](const Keys& keys) -> absl::StatusOr<Values> {
      ++asked;
      while (!open) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      Values values;
      for (const std::string& key : keys) values.push_back("of " + key);
      return values;
    };
  }
  void WaitForQuestions(int count) const {
    while (asked < count) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::atomic<int> asked{0};
  std::atomic<bool> open{false};
};

TEST(SharedRendezvous, RanksThatMissTheSameKeysShareAQuestion) {
  SharedRendezvous shared([](const SharedRendezvous::Run&) { return true; });
  Coordinator coordinator;
  std::atomic<int> good{0};
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 8; ++rank) {
    ranks.emplace_back([&] {
      const auto values = shared.Get(kRun, {"a", "b"}, kPatient, coordinator.Ask());
      good += values.ok() && *values == Values{"of a", "of b"};
    });
  }
  coordinator.WaitForQuestions(1);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  coordinator.open = true;
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(good, 8);
  EXPECT_EQ(coordinator.asked, 1);
}

TEST(SharedRendezvous, WhatIsKnownIsNotAskedFor) {
  SharedRendezvous shared([](const SharedRendezvous::Run&) { return true; });
  shared.Keep(kRun, "b", "own");
  Keys asked;
  const auto ask = [&](const Keys& keys) -> absl::StatusOr<Values> {
    asked = keys;
    return Values(keys.size(), "new");
  };
  EXPECT_THAT(*shared.Get(kRun, {"a", "b", "c"}, kPatient, ask), ElementsAre("new", "own", "new"));
  EXPECT_THAT(asked, ElementsAre("a", "c"));
  asked.clear();
  EXPECT_THAT(*shared.Get(kRun, {"c", "a"}, kPatient, ask), ElementsAre("new", "new"));
  EXPECT_THAT(asked, ElementsAre());
}

// Else a rank could wait for what another one puts only after it has got what both want.
TEST(SharedRendezvous, AWaitForMoreHoldsUpNobody) {
  SharedRendezvous shared([](const SharedRendezvous::Run&) { return true; });
  Coordinator closed;
  std::thread rank([&] { EXPECT_TRUE(shared.Get(kRun, {"a", "b"}, kPatient, closed.Ask()).ok()); });
  closed.WaitForQuestions(1);
  Coordinator open;
  open.open = true;
  EXPECT_THAT(*shared.Get(kRun, {"a"}, kPatient, open.Ask()), ElementsAre("of a"));
  closed.open = true;
  rank.join();
}

TEST(SharedRendezvous, ACallerThatGivesUpLeavesTheQuestionToTheNext) {
  SharedRendezvous shared([](const SharedRendezvous::Run&) { return true; });
  std::atomic<bool> asked{false};
  std::atomic<bool> dies{false};
  std::thread first([&] {
    const auto status =
        shared.Get(kRun, {"a"}, kPatient, [&](const Keys&) -> absl::StatusOr<Values> {
          asked = true;
          while (!dies) std::this_thread::sleep_for(std::chrono::milliseconds(1));
          return absl::CancelledError("died");
        });
    EXPECT_EQ(status.status().code(), absl::StatusCode::kCancelled);
  });
  while (!asked) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const SharedRendezvous::Caller hasty{SteadyNow() + absl::Milliseconds(50), [] { return false; }};
  Coordinator coordinator;
  coordinator.open = true;
  EXPECT_EQ(shared.Get(kRun, {"a"}, hasty, coordinator.Ask()).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  const SharedRendezvous::Caller gone{absl::InfiniteFuture(), [] { return true; }};
  EXPECT_EQ(shared.Get(kRun, {"a"}, gone, coordinator.Ask()).status().code(),
            absl::StatusCode::kCancelled);
  EXPECT_EQ(coordinator.asked, 0);
  std::thread second(
      [&] { EXPECT_TRUE(shared.Get(kRun, {"a"}, kPatient, coordinator.Ask()).ok()); });
  dies = true;
  first.join();
  second.join();
  EXPECT_EQ(coordinator.asked, 1);
}

TEST(SharedRendezvous, ARefusalIsForAllAndAnotherSecretAsksForItself) {
  SharedRendezvous shared([](const SharedRendezvous::Run&) { return true; });
  shared.Keep(kRun, "a", "value");
  const auto refuse = [](const Keys&) -> absl::StatusOr<Values> {
    return absl::AbortedError("this attempt is over");
  };
  EXPECT_EQ(shared.Get({"job", 1, "guess"}, {"a"}, kPatient, refuse).status().code(),
            absl::StatusCode::kAborted);
  EXPECT_EQ(shared.Get(kRun, {"b"}, kPatient, refuse).status().code(), absl::StatusCode::kAborted);
  const auto few = [](const Keys&) -> absl::StatusOr<Values> { return Values{}; };
  EXPECT_EQ(shared.Get(kRun, {"b"}, kPatient, few).status().code(), absl::StatusCode::kInternal);
}

TEST(SharedRendezvous, RunsThatHaveEndedAreForgotten) {
  bool lives = true;
  SharedRendezvous shared(
      [&](const SharedRendezvous::Run& run) { return lives || run.attempt > 1; });
  shared.Keep(kRun, "a", "old");
  lives = false;
  shared.Keep({"job", 2, "secret"}, "a", "new");
  const auto ask = [](const Keys&) -> absl::StatusOr<Values> { return Values{"asked again"}; };
  EXPECT_THAT(*shared.Get(kRun, {"a"}, kPatient, ask), ElementsAre("asked again"));
}

}  // namespace
}  // namespace tercio::agent
