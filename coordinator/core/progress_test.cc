// What is said of how a job gets on: the time that is left, and saves that fail.
#include <optional>

#include "coordinator/core/testing/test_cluster.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::coordinator {
namespace {

using ::testing::DoubleNear;
using ::testing::HasSubstr;
using ::testing::Optional;

class ProgressTest : public ::testing::Test {
 protected:
  void SetUp() override {
    cluster_.Do(Submitted{kJob, SmallSpec(2)});  // a job of 100 steps
    cluster_.Attach("a");
    cluster_.StartAll();
  }
  std::optional<double> Left() { return SecondsLeft(cluster_.job()); }
  Effects Unanswered(int rank, int64_t step, int attempt = 1,
                     const std::string& error = "connection refused",
                     v1::SaveProblem problem = v1::SAVE_PROBLEM_UNREACHABLE) {
    return cluster_.Say("a", [&](v1::AgentMessage& m) {
      *m.mutable_save_unanswered()->mutable_run() = RunWith(attempt);
      m.mutable_save_unanswered()->set_rank(rank);
      m.mutable_save_unanswered()->set_step(step);
      m.mutable_save_unanswered()->set_error(error);
      m.mutable_save_unanswered()->set_problem(problem);
    });
  }
  void Fail(int64_t step, SaveFailure reason = SaveFailure::kDiskFull) {
    cluster_.Do(CheckpointFailed{RunWith(cluster_.job().attempt()), step, "no room", reason});
  }

  Cluster cluster_;
};

TEST_F(ProgressTest, TheTimeLeftFollowsFromTheMedianOfTheLastSteps) {
  EXPECT_EQ(Left(), std::nullopt);
  for (int64_t step = 1; step <= 9; ++step) cluster_.Stepped(step, 2);
  EXPECT_THAT(Left(), Optional(DoubleNear(91 * 2, 1e-3)));
  cluster_.Stepped(10, 60);
  EXPECT_THAT(Left(), Optional(DoubleNear(90 * 2, 1e-3))) << "one slow step";
  // It follows a run that has become slower for good.
  for (int64_t step = 11; step <= 10 + kRecentSteps; ++step) cluster_.Stepped(step, 5);
  EXPECT_THAT(Left(), Optional(DoubleNear((90 - kRecentSteps) * 5, 1e-3)));
  EXPECT_EQ(cluster_.job().recent_step_seconds_size(), kRecentSteps);
}

TEST_F(ProgressTest, TheTimeLeftOutlivesTheCoordinatorAndTheAttempt) {
  for (int64_t step = 1; step <= 10; ++step) cluster_.Stepped(step, 2);
  cluster_.RestartCoordinator();
  EXPECT_THAT(Left(), Optional(DoubleNear(90 * 2, 1e-3)));
  cluster_.Attach("a", {1});
  cluster_.Break();
  cluster_.StartAll();
  EXPECT_THAT(Left(), Optional(DoubleNear(100 * 2, 1e-3))) << "it goes on from the beginning";
  cluster_.Do(CancelRequested{kJob, false, ""});
  cluster_.StopAll();
  EXPECT_EQ(Left(), std::nullopt) << "it has ended";
}

// The service waits for no part of it (coordinator/service/saves.h).
TEST_F(ProgressTest, TheLastSaveThatARankGaveUpIsKnown) {
  const auto given_up = [this] {
    const JobState& job = cluster_.state_.jobs.at(kJob);
    return std::pair(job.given_up_attempt, job.given_up_step);
  };
  cluster_.Stepped(20);
  EXPECT_EQ(given_up(), std::pair(0, int64_t{0}));
  Unanswered(0, 10);
  EXPECT_EQ(given_up(), std::pair(1, int64_t{10}));
  // All ranks skip a save together.
  Unanswered(0, 20, 1, "busy", v1::SAVE_PROBLEM_SKIPPED);
  EXPECT_EQ(given_up(), std::pair(1, int64_t{10}));
  Unanswered(1, 20, 1, "late", v1::SAVE_PROBLEM_TIMEOUT);
  EXPECT_EQ(given_up(), std::pair(1, int64_t{20}));
}

TEST_F(ProgressTest, SavesThatFailAreSaidUntilOneIsCommitted) {
  cluster_.Stepped(10);
  Fail(10);
  const double first = cluster_.job().saves_fail_since();
  EXPECT_GT(first, 0);
  Fail(20);
  EXPECT_EQ(cluster_.job().failed_saves(), 2);
  EXPECT_EQ(cluster_.job().saves_fail_since(), first);
  EXPECT_EQ(cluster_.job().save_error(), "step 20: no room");
  cluster_.RestartCoordinator();
  EXPECT_EQ(cluster_.job().failed_saves(), 2);
  cluster_.Committed(30);
  EXPECT_EQ(cluster_.job().failed_saves(), 0);
  EXPECT_EQ(cluster_.job().saves_fail_since(), 0);
  EXPECT_EQ(cluster_.job().save_error(), "");
}

TEST_F(ProgressTest, ASaveThatItsAttemptHasLeftIsNoTrouble) {
  Fail(10, SaveFailure::kInterrupted);
  EXPECT_EQ(cluster_.job().failed_saves(), 0);
  cluster_.Exited(0, 1);
  Fail(20);
  EXPECT_EQ(cluster_.job().failed_saves(), 0);
}

TEST_F(ProgressTest, AnOlderCheckpointIsNotAsYoungAsTheDamagedOne) {
  cluster_.Stepped(20);
  cluster_.Committed(10);
  const double older = cluster_.job().checkpoint_at();
  cluster_.Committed(20);
  const double at = cluster_.job().checkpoint_at();
  EXPECT_GT(older, 0);
  EXPECT_GT(at, older);
  cluster_.Break();
  cluster_.StartAll(20);
  EXPECT_EQ(cluster_.job().checkpoint_at(), at);
  cluster_.Stepped(21);
  cluster_.Break();
  cluster_.StartAll(10);
  EXPECT_EQ(cluster_.job().checkpoint_step(), 10);
  EXPECT_EQ(cluster_.job().checkpoint_at(), older);
}

TEST_F(ProgressTest, UploadsThatReachNobodyAreToldOnce) {
  const Effects told = Unanswered(1, 10);
  ASSERT_EQ(told.events.size(), 1u);
  EXPECT_EQ(told.events[0].kind(), "checkpoint_failed");
  EXPECT_EQ(told.events[0].rank(), 1);
  EXPECT_THAT(told.events[0].message(), HasSubstr("rank 1 on node a cannot reach"));
  ASSERT_EQ(told.saves.size(), 1u);
  EXPECT_EQ(told.saves[0].failure, SaveFailure::kUnreachable);
  EXPECT_TRUE(Unanswered(0, 10).events.empty()) << "the same save";
  EXPECT_EQ(cluster_.job().failed_saves(), 1);
  // Rank 0's part has come: the coordinator waits for the others in vain.
  Fail(10, SaveFailure::kSilence);
  EXPECT_EQ(cluster_.job().failed_saves(), 1);
  cluster_.Committed(20);
  EXPECT_TRUE(Unanswered(1, 20).events.empty()) << "all was there, the answer was lost";
  EXPECT_EQ(cluster_.job().failed_saves(), 0);
  EXPECT_TRUE(Unanswered(1, 30, /*attempt=*/0).events.empty()) << "another attempt";
}

TEST_F(ProgressTest, ARankSaysThatASaveTookTooLongOrWasLeftOut) {
  const auto timed_out = [this](int rank) {
    return Unanswered(rank, 10, 1, "not stored within 10m", v1::SAVE_PROBLEM_TIMEOUT);
  };
  const Effects late = timed_out(1);
  ASSERT_EQ(late.saves.size(), 1u);
  EXPECT_EQ(late.saves[0].failure, SaveFailure::kTimeout);
  EXPECT_EQ(late.events[0].message(),
            "step 10: the part of rank 1 on node a was not stored within 10m");
  EXPECT_TRUE(timed_out(0).events.empty()) << "the same save";
  const Effects skipped =
      Unanswered(0, 20, 1, "the one of step 10 is under way", v1::SAVE_PROBLEM_SKIPPED);
  ASSERT_EQ(skipped.saves.size(), 1u);
  EXPECT_EQ(skipped.saves[0].failure, SaveFailure::kSkipped);
  EXPECT_EQ(skipped.events[0].message(), "step 20: skipped: the one of step 10 is under way");
  EXPECT_EQ(cluster_.job().failed_saves(), 2);
  const Effects full =
      Unanswered(1, 30, 1, "cannot write /shared/part: disk full", v1::SAVE_PROBLEM_DISK_FULL);
  ASSERT_EQ(full.saves.size(), 1u);
  EXPECT_EQ(full.saves[0].failure, SaveFailure::kDiskFull);
  EXPECT_EQ(full.events[0].message(),
            "step 30: the part of rank 1 on node a was not written: cannot write /shared/part: "
            "disk full");
  const Effects other =
      Unanswered(1, 40, 1, "cannot write /shared/part: EIO", v1::SAVE_PROBLEM_NOT_WRITTEN);
  ASSERT_EQ(other.saves.size(), 1u);
  EXPECT_EQ(other.saves[0].failure, SaveFailure::kOther);
}

TEST_F(ProgressTest, ASaveThatFailsForOneRankNamesItAndItsNode) {
  const Effects failed = cluster_.Do(
      CheckpointFailed{RunWith(1), 10, "cannot write /shared/part", SaveFailure::kDiskFull, 1});
  ASSERT_EQ(failed.events.size(), 1u);
  EXPECT_EQ(failed.events[0].message(),
            "step 10: the part of rank 1 on node a was not written: cannot write /shared/part");
  EXPECT_EQ(failed.events[0].node(), "a");
  EXPECT_EQ(failed.events[0].rank(), 1);
  EXPECT_EQ(cluster_.job().failed_saves(), 1);
  const Effects again = Unanswered(1, 10, 1, "cannot write", v1::SAVE_PROBLEM_DISK_FULL);
  EXPECT_TRUE(again.events.empty()) << "its agent passes it on, too";
}

}  // namespace
}  // namespace tercio::coordinator
