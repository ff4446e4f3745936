#include "coordinator/service/rendezvous.h"

#include <atomic>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

v1::RunId Attempt(int attempt) {
  v1::RunId run;
  run.set_job_id("job");
  run.set_attempt(attempt);
  return run;
}

// What a Get was answered with, if at all.
struct Slot {
  int answers = 0;
  absl::StatusOr<Rendezvous::Values> answer = absl::UnknownError("none");
  Rendezvous::Answer Take() {
    return [this](absl::StatusOr<Rendezvous::Values> given) {
      ++answers;
      answer = std::move(given);
    };
  }
};

TEST(Rendezvous, AGetIsAnsweredByTheLastOfItsKeys) {
  Rendezvous rendezvous;
  Slot slot;
  rendezvous.Put(Attempt(1), "b", "2");
  rendezvous.Get(Attempt(1), {"a", "b", "c"}, absl::InfiniteFuture(), slot.Take());
  rendezvous.Put(Attempt(1), "c", "3");
  EXPECT_EQ(slot.answers, 0);
  rendezvous.Put(Attempt(1), "c", "4");  // said twice
  EXPECT_EQ(slot.answers, 0);
  rendezvous.Put(Attempt(1), "a", "1");
  ASSERT_TRUE(slot.answer.ok());
  EXPECT_THAT(*slot.answer, ElementsAre("1", "2", "4"));
  Slot later;
  rendezvous.Get(Attempt(1), {"a"}, absl::InfiniteFuture(), later.Take());
  EXPECT_THAT(*later.answer, ElementsAre("1"));
  EXPECT_EQ(slot.answers, 1);
}

TEST(Rendezvous, AttemptsDoNotSeeEachOther) {
  Rendezvous rendezvous;
  rendezvous.Put(Attempt(1), "a", "old");
  Slot old;
  rendezvous.Get(Attempt(1), {"x"}, absl::InfiniteFuture(), old.Take());
  Slot slot;
  rendezvous.Get(Attempt(2), {"a"}, absl::InfiniteFuture(), slot.Take());
  EXPECT_EQ(slot.answers, 0);
  rendezvous.Put(Attempt(1), "a", "late");
  rendezvous.Put(Attempt(1), "x", "late");
  EXPECT_EQ(slot.answers, 0);
  rendezvous.Put(Attempt(2), "a", "new");
  EXPECT_THAT(*slot.answer, ElementsAre("new"));
  rendezvous.Expire(absl::Now(), [](const v1::RunId& run) { return run.attempt() == 2; });
  EXPECT_EQ(old.answer.status().code(), absl::StatusCode::kAborted);
}

TEST(Rendezvous, WhatDoesNotComeIsNamed) {
  Rendezvous rendezvous;
  Slot slot;
  const absl::Time now = absl::Now();
  rendezvous.Put(Attempt(1), "here", "");
  rendezvous.Get(Attempt(1), {"here", "a", "b"}, now + absl::Seconds(1), slot.Take());
  const auto present = [](const v1::RunId&) { return true; };
  rendezvous.Expire(now, present);
  EXPECT_EQ(slot.answers, 0);
  rendezvous.Expire(now + absl::Seconds(2), present);
  EXPECT_EQ(slot.answer.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(slot.answer.status().message()), HasSubstr("a, b"));
  rendezvous.Put(Attempt(1), "a", "");
  rendezvous.Put(Attempt(1), "b", "");
  EXPECT_EQ(slot.answers, 1);
}

TEST(Rendezvous, ACancelledWaitIsAnsweredOnce) {
  Rendezvous rendezvous;
  Slot slot;
  const int64_t waiter = rendezvous.Get(Attempt(1), {"a"}, absl::InfiniteFuture(), slot.Take());
  rendezvous.Cancel(waiter);
  EXPECT_EQ(slot.answer.status().code(), absl::StatusCode::kCancelled);
  rendezvous.Cancel(waiter);
  rendezvous.Put(Attempt(1), "a", "");
  EXPECT_EQ(slot.answers, 1);
}

TEST(Rendezvous, ValuesOfAnAttemptThatIsOverAreDropped) {
  Rendezvous rendezvous;
  rendezvous.Put(Attempt(1), "a", "value");
  rendezvous.Expire(absl::Now(), [](const v1::RunId&) { return true; });
  Slot kept;
  rendezvous.Get(Attempt(1), {"a"}, absl::InfiniteFuture(), kept.Take());
  EXPECT_EQ(kept.answers, 1);
  rendezvous.Expire(absl::Now(), [](const v1::RunId&) { return false; });
  Slot dropped;
  rendezvous.Get(Attempt(1), {"a"}, absl::InfiniteFuture(), dropped.Take());
  EXPECT_EQ(dropped.answers, 0);
}

TEST(Rendezvous, ManyThreads) {
  constexpr int kRanks = 32;
  Rendezvous rendezvous;
  std::vector<std::string> keys;
  for (int i = 0; i < kRanks; ++i) keys.push_back("rank " + std::to_string(i));
  std::atomic<int> complete{0};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      rendezvous.Put(Attempt(1), keys[static_cast<size_t>(rank)], std::to_string(rank));
      rendezvous.Get(Attempt(1), keys, absl::InfiniteFuture(),
                     [&](const absl::StatusOr<Rendezvous::Values>& values) {
                       complete += values.ok() && values->size() == kRanks;
                     });
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(complete, kRanks);
}

}  // namespace
}  // namespace tercio::coordinator
