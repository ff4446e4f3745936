// Which checkpoint an attempt starts from, when a job fails instead, and what is kept.
#include "coordinator/core/checkpoints.h"

#include <algorithm>
#include <string>
#include <vector>

#include "coordinator/core/testing/test_cluster.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "plan/numerics.h"

namespace tercio::coordinator {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class CheckpointsTest : public ::testing::Test, public Cluster {
 protected:
  CheckpointsTest() {
    settings_.checkpoint_patience = 60;
    Attach("a");
    Do(Submitted{kJob, SmallSpec(2)});
  }

  CheckpointFound Found(int64_t step, std::vector<CheckpointFinding> findings = {}) {
    return {RunWith(job().attempt()), step, "path", 1, std::move(findings), {}};
  }
  void Commit(int64_t step, bool verified = true) {
    Stepped(step);
    last_ = Do(CheckpointCommitted{RunWith(job().attempt()), step, "path", 1, 0, "digest", verified,
                                   plan::kNumerics});
  }
  v1::JobRecord& job_record() { return state_.jobs.at(kJob).record; }
  // The next attempt prepares: what it has asked the disk for.
  FindCheckpoint BreakAndSearch() {
    Exited(0, 0, 9);
    StopAll();
    now_ += 100;
    Beat();
    const Effects effects = Do(Tick{});
    EXPECT_EQ(job().phase(), v1::JOB_PHASE_PREPARING) << job().error();
    EXPECT_EQ(effects.searches.size(), 1u);
    return effects.searches.empty() ? FindCheckpoint() : effects.searches.front();
  }
  void Resume(std::optional<int64_t> from_step = {}) {
    ResumeRequested resume;
    resume.job_id = kJob;
    resume.spec = job().spec();
    resume.from_step = from_step;
    last_ = Do(resume);
    ASSERT_TRUE(last_.answer.ok()) << last_.answer;
  }
  static std::vector<int64_t> StepsOf(const std::vector<v1::CheckpointRecord>& records) {
    std::vector<int64_t> steps;
    for (const v1::CheckpointRecord& record : records) steps.push_back(record.step());
    return steps;
  }
  // The steps whose verification a tick asks for.
  std::vector<int64_t> Scrubbed() {
    std::vector<int64_t> steps;
    for (const auto& verification : Do(Tick{}).verifications) steps.push_back(verification.step);
    return steps;
  }
};

TEST_F(CheckpointsTest, AJobWithoutCheckpointsStartsAtTheBeginning) {
  StartAll(0);
  Stepped(3);
  BreakAndSearch();
  StartAll(0);
  EXPECT_EQ(job().resume_step(), 0);
}

TEST_F(CheckpointsTest, DamagedOnesArePassedOver) {
  StartAll(0);
  Commit(2);
  Commit(4);
  const FindCheckpoint search = BreakAndSearch();
  EXPECT_THAT(StepsOf(search.known), ElementsAre(4, 2));
  EXPECT_EQ(search.known.front().manifest_digest(), "digest");
  Do(Found(2, {{4, "rank-0: its checksum differs", true}}));
  EXPECT_THAT(kinds_, Contains("checkpoint_damaged"));
  StartAll(2);
  EXPECT_EQ(job().resume_step(), 2);
  EXPECT_EQ(FindCheckpointRecord(state_.jobs.at(kJob).record, 4)->problem(),
            "rank-0: its checksum differs");
  // It is of a history that was given up.
  EXPECT_THAT(StepsOf(BreakAndSearch().known), ElementsAre(2));
}

// Such a job once started at step 0, deleted the checkpoints that it saved, and ended as succeeded.
TEST_F(CheckpointsTest, AJobWhoseCheckpointsAreAllDamagedFailsAndNamesThem) {
  StartAll(0);
  Commit(2);
  Commit(4);
  BreakAndSearch();
  last_ = Do(Found(0, {{4, "four is damaged", true}, {2, "two is gone", true}}));
  EXPECT_EQ(job().phase(), v1::JOB_PHASE_FAILED);
  EXPECT_THAT(job().error(), HasSubstr("step 4: four is damaged; step 2: two is gone"));
  EXPECT_THAT(job().error(), HasSubstr("--from-step N"));
  EXPECT_TRUE(last_.removals.empty());
}

TEST_F(CheckpointsTest, ASearchThatFindsNothingAtAllDoesNotStartOver) {
  StartAll(0);
  Commit(2);
  BreakAndSearch();
  Do(Found(0));
  EXPECT_EQ(job().phase(), v1::JOB_PHASE_FAILED);
}

TEST_F(CheckpointsTest, WhatMayPassIsTriedAgain) {
  StartAll(0);
  Commit(2);
  BreakAndSearch();
  Do(Found(0, {{0, "cannot list: is the volume mounted?", false}}));
  EXPECT_EQ(job().phase(), v1::JOB_PHASE_PREPARING);
  EXPECT_THAT(kinds_, Contains("checkpoint_unreadable"));
  EXPECT_THAT(job().unreadable_error(), HasSubstr("mounted"));
  EXPECT_TRUE(Do(Tick{}).searches.empty());
  now_ += 1;
  Beat();
  EXPECT_EQ(Do(Tick{}).searches.size(), 1u);
  EXPECT_TRUE(Do(Tick{}).searches.empty()) << "it is under way";
  Do(Found(2));
  EXPECT_EQ(job().unreadable_error(), "");
  StartAll(2);
  EXPECT_EQ(job().resume_step(), 2);
  EXPECT_EQ(std::count(kinds_.begin(), kinds_.end(), "checkpoint_unreadable"), 1);
}

TEST_F(CheckpointsTest, NobodyWaitsForEver) {
  StartAll(0);
  Commit(2);
  BreakAndSearch();
  for (int i = 0; i < 1000 && !IsTerminal(job().phase()); ++i) {
    now_ += 1;
    Beat();
    for (const FindCheckpoint& search : Do(Tick{}).searches) {
      EXPECT_EQ(search.run.attempt(), 2);
      Do(Found(0, {{2, "permission denied", false}}));
    }
    if (i == 0) Do(Found(0, {{2, "permission denied", false}}));
  }
  EXPECT_EQ(job().phase(), v1::JOB_PHASE_FAILED);
  EXPECT_THAT(job().error(), HasSubstr("permission denied"));
}

TEST_F(CheckpointsTest, ADiskThatDoesNotAnswerIsNotWaitedForForEver) {
  StartAll(0);
  Commit(2);
  BreakAndSearch();
  Wait(58);  // and a fiftieth for each second
  EXPECT_EQ(job().phase(), v1::JOB_PHASE_PREPARING);
  Wait(3);
  EXPECT_EQ(job().phase(), v1::JOB_PHASE_FAILED);
  EXPECT_THAT(job().error(), HasSubstr("does not answer"));
}

TEST_F(CheckpointsTest, APersonChoosesWhereItStarts) {
  StartAll(0);
  Commit(2);
  Commit(4);
  Stepped(5);
  Do(CancelRequested{kJob});
  StopAll();
  ASSERT_EQ(job().phase(), v1::JOB_PHASE_CANCELLED);
  Resume(2);
  ASSERT_EQ(last_.searches.size(), 1u);
  EXPECT_EQ(last_.searches.front().only, 2);
  StartAll(2);
  EXPECT_EQ(job().resume_step(), 2);
  EXPECT_EQ(job().from_step_plus_one(), 0);
  // What was chosen once stays chosen: what came after it is not taken by later attempts.
  EXPECT_THAT(StepsOf(BreakAndSearch().known), ElementsAre(2));
  StartAll(2);
  Commit(3);
  EXPECT_EQ(job().checkpoint_step(), 3) << "below the highest, but the newest";
}

TEST_F(CheckpointsTest, FromTheBeginningOnPurpose) {
  StartAll(0);
  Commit(2);
  BreakAndSearch();
  Do(Found(0, {{2, "damaged", true}}));
  ASSERT_EQ(job().phase(), v1::JOB_PHASE_FAILED);
  Resume(0);
  StartAll(0);
  EXPECT_EQ(job().resume_step(), 0);
  EXPECT_EQ(job().checkpoint_step(), 0);
  EXPECT_TRUE(BreakAndSearch().known.empty());
  StartAll(0);
}

TEST_F(CheckpointsTest, AChosenStepThatIsNotThereFailsTheJob) {
  StartAll(0);
  Commit(2);
  Do(CancelRequested{kJob});
  StopAll();
  Resume(1);
  Do(Found(0));
  EXPECT_EQ(job().phase(), v1::JOB_PHASE_FAILED);
  EXPECT_THAT(job().error(), HasSubstr("no checkpoint of step 1"));
}

TEST_F(CheckpointsTest, AChosenStepOfAHistoryThatWasGivenUpIsNamedAsThat) {
  StartAll(0);
  Commit(2);
  Commit(4);
  Do(CancelRequested{kJob});
  StopAll();
  Resume(2);
  StartAll(2);
  Do(CancelRequested{kJob});
  StopAll();
  Resume(4);
  CheckpointFound nothing = Found(0);
  for (const int64_t step : {2, 4}) {
    v1::CheckpointRecord& there = nothing.there.emplace_back();
    there.set_step(step);
    there.set_attempt(1);
  }
  Do(nothing);
  EXPECT_EQ(job().phase(), v1::JOB_PHASE_FAILED);
  EXPECT_THAT(job().error(), HasSubstr("the checkpoint of step 4 belongs to attempt 1, whose steps "
                                       "were discarded when the job was resumed from an earlier "
                                       "one; available steps: 2"));
}

// Its ranks verify what they read: where they could not even begin, the disk is looked at.
TEST_F(CheckpointsTest, AStartInVainMakesItsCheckpointSuspect) {
  StartAll(0);
  Commit(2);
  EXPECT_EQ(BreakAndSearch().suspect_step, 0);
  StartAll(2);
  EXPECT_EQ(BreakAndSearch().suspect_step, 2);
  StartAll(2);
  Stepped(3);
  EXPECT_EQ(BreakAndSearch().suspect_step, 0);
}

TEST_F(CheckpointsTest, WhatTheDiskHoldsIsKnownAgain) {
  StartAll(0);
  Commit(2);
  BreakAndSearch();
  // Committed by a coordinator that died before it could record it.
  CheckpointFound found = Found(4);
  for (const int64_t step : {2, 4}) {
    found.there.emplace_back().set_step(step);
    found.there.back().set_attempt(1);
  }
  Do(found);
  EXPECT_THAT(StepsOf(CheckpointsThatCount(job())), ElementsAre(4, 2));
}

// What it was computed by: the record of its commit, or its manifest where an older version has
// recorded it, says so.
TEST_F(CheckpointsTest, AResumeByOtherNumericsIsAnEvent) {
  const auto resume_from = [&](int recorded, int of_manifest) {
    BreakAndSearch();
    job_record().mutable_checkpoints(0)->set_numerics(recorded);
    kinds_.clear();
    CheckpointFound found = Found(2);
    found.there.emplace_back().set_step(2);
    found.there.back().set_attempt(1);
    found.there.back().set_numerics(of_manifest);
    Do(found);
    StartAll(2);
  };
  StartAll(0);
  EXPECT_THAT(kinds_, Not(Contains("numerics_changed"))) << "there was no state";
  Commit(2);
  EXPECT_EQ(job_record().checkpoints(0).numerics(), plan::kNumerics);
  EXPECT_EQ(state_.jobs.at(kJob).plan->numerics(), plan::kNumerics);
  resume_from(plan::kNumerics, plan::kNumerics);
  EXPECT_THAT(kinds_, Not(Contains("numerics_changed")));
  resume_from(plan::kNumerics - 1, plan::kNumerics - 1);
  EXPECT_THAT(kinds_, Contains("numerics_changed"));
  resume_from(0, plan::kNumerics - 1);
  EXPECT_THAT(kinds_, Contains("numerics_changed"));
  EXPECT_EQ(job_record().checkpoints(0).numerics(), plan::kNumerics - 1);
}

TEST_F(CheckpointsTest, OlderStoresKnowTheirLastOne) {
  StartAll(0);
  Commit(2);
  state_.jobs.at(kJob).record.clear_checkpoints();
  state_.jobs.at(kJob).record.set_checkpoint_attempt(0);
  RestartCoordinator();
  EXPECT_THAT(StepsOf(CheckpointsThatCount(job())), ElementsAre(2));
}

TEST_F(CheckpointsTest, RetentionCountsWhatIsVerified) {
  v1::JobRecord record;
  const auto add = [&](int64_t step, int attempt, bool verified, bool damaged) {
    v1::CheckpointRecord known;
    known.set_step(step);
    known.set_attempt(attempt);
    if (verified) known.set_verified_at(1);
    if (damaged) known.set_problem("damaged");
    AddCheckpointRecord(record, known);
  };
  for (int64_t step = 1; step <= 4; ++step) add(step, 1, true, false);
  EXPECT_THAT(StepsOf(SuperfluousCheckpoints(record, 2, 0)), ElementsAre(1, 2));
  EXPECT_THAT(StepsOf(SuperfluousCheckpoints(record, 2, 2)), ElementsAre(1));
  EXPECT_THAT(StepsOf(SuperfluousCheckpoints(record, 0, 0)), ElementsAre(1, 2, 3));
  add(5, 1, false, false);
  add(6, 1, true, true);
  EXPECT_THAT(StepsOf(SuperfluousCheckpoints(record, 2, 0)), ElementsAre(1, 2))
      << "neither takes another's place";
  // After three damaged ones of high steps, new ones below them are the newest all the same.
  v1::JobRecord back;
  for (const int64_t step : {1000, 2000, 3000}) {
    v1::CheckpointRecord known;
    known.set_step(step);
    known.set_attempt(1);
    known.set_verified_at(1);
    known.set_problem("damaged");
    AddCheckpointRecord(back, known);
  }
  for (const int64_t step : {50, 100}) {
    v1::CheckpointRecord known;
    known.set_step(step);
    known.set_attempt(2);
    known.set_verified_at(1);
    AddCheckpointRecord(back, known);
  }
  EXPECT_THAT(StepsOf(SuperfluousCheckpoints(back, 3, 0)), ElementsAre());
  EXPECT_THAT(StepsOf(SuperfluousCheckpoints(back, 1, 0)), ElementsAre(1000, 2000, 3000, 50));
}

TEST_F(CheckpointsTest, WhatIsOfNoHistoryTakesNoOthersPlace) {
  v1::JobRecord record;
  const auto add = [&](int64_t step, int attempt) {
    v1::CheckpointRecord known;
    known.set_step(step);
    known.set_attempt(attempt);
    known.set_verified_at(1);
    AddCheckpointRecord(record, known);
  };
  for (const int64_t step : {2, 4, 6}) add(step, 1);
  (*record.mutable_resume_steps())[2] = 2;  // a person has gone back
  add(3, 2);
  EXPECT_THAT(StepsOf(SuperfluousCheckpoints(record, 2, 0)), ElementsAre());
  add(5, 2);
  EXPECT_THAT(StepsOf(SuperfluousCheckpoints(record, 2, 0)), ElementsAre(2, 4, 6));
}

TEST_F(CheckpointsTest, AnOlderVerdictIsNotThatOfItsSuccessor) {
  StartAll(0);
  Commit(2, /*verified=*/false);
  ASSERT_EQ(last_.verifications.size(), 1u);
  Do(CancelRequested{kJob});
  StopAll();
  Resume(0);
  StartAll(0);
  Commit(2, /*verified=*/false);
  EXPECT_TRUE(last_.verifications.empty()) << "the first is under way";
  last_ = Do(CheckpointVerified{kJob, 2, "", false});
  EXPECT_EQ(job().checkpoints(0).verified_at(), 0);
  ASSERT_EQ(last_.verifications.size(), 1u);
  Do(CheckpointVerified{kJob, 2, "", false});
  EXPECT_GT(job().checkpoints(0).verified_at(), 0);
}

TEST_F(CheckpointsTest, ARemovalIsNotThatOfASuccessor) {
  StartAll(0);
  Commit(2);
  Do(CancelRequested{kJob});
  StopAll();
  Resume(0);
  StartAll(0);
  Commit(2);
  Do(CheckpointRemoved{kJob, 2, 1});
  EXPECT_THAT(StepsOf(CheckpointsThatCount(job())), ElementsAre(2));
  Do(CheckpointRemoved{kJob, 2, 2});
  EXPECT_TRUE(CheckpointsThatCount(job()).empty());
}

TEST_F(CheckpointsTest, WhatComesBackIsVerified) {
  StartAll(0);
  Commit(2);
  Do(CheckpointVerified{kJob, 2, "its directory is gone", true});
  BreakAndSearch();
  const Effects effects = Do(Found(2));
  ASSERT_EQ(effects.verifications.size(), 1u);
  Do(CheckpointVerified{kJob, 2, "", false});
  EXPECT_EQ(job().checkpoints(0).problem(), "");
}

// A node was lost meanwhile, or the coordinator: nobody has looked for so long.
TEST_F(CheckpointsTest, PatienceIsForWhatWasTried) {
  StartAll(0);
  Commit(2);
  BreakAndSearch();
  const CheckpointFound unreadable = Found(0, {{2, "permission denied", false}});
  Do(unreadable);
  now_ += 1000;
  RestartCoordinator();
  Attach("a");
  Do(unreadable);
  EXPECT_EQ(job().phase(), v1::JOB_PHASE_PREPARING) << job().error();
  now_ += 1000;
  Do(Tick{});
  ASSERT_EQ(job().phase(), v1::JOB_PHASE_QUEUED);
  Attach("a");
  Do(Found(0, {{2, "permission denied", false}}));
  EXPECT_EQ(job().phase(), v1::JOB_PHASE_PREPARING) << job().error();
}

// The state directory was full: answers wait behind what came before them.
TEST_F(CheckpointsTest, AnAnswerThatIsHeardLateCounts) {
  StartAll(0);
  Commit(2);
  BreakAndSearch();
  for (auto& [name, node] : state_.nodes) node.last_heard = now_ + 1000;
  now_ += 1000;
  Do(Tick{});
  EXPECT_EQ(job().phase(), v1::JOB_PHASE_PREPARING) << job().error();
  StartAll(2);
}

TEST_F(CheckpointsTest, OldOnesGoOnlyWhenTheNewOneIsVerified) {
  state_.jobs.at(kJob).record.mutable_spec()->mutable_checkpoint()->set_keep_last(1);
  StartAll(0);
  Commit(2);
  EXPECT_TRUE(last_.removals.empty());
  Commit(4, /*verified=*/false);
  EXPECT_TRUE(last_.removals.empty());
  ASSERT_EQ(last_.verifications.size(), 1u);
  EXPECT_EQ(last_.verifications.front().step, 4);
  last_ = Do(CheckpointVerified{kJob, 4, "", false});
  ASSERT_EQ(last_.removals.size(), 1u);
  EXPECT_EQ(last_.removals.front().step, 2);
  // Somebody verifies it while it is removed.
  last_ = Do(CheckpointVerified{kJob, 2, "its directory is gone", true});
  EXPECT_TRUE(last_.events.empty());
  EXPECT_EQ(FindCheckpointRecord(state_.jobs.at(kJob).record, 2)->problem(), "");
  Do(CheckpointRemoved{kJob, 2, 1});
  EXPECT_THAT(StepsOf(CheckpointsThatCount(job())), ElementsAre(4));
}

TEST_F(CheckpointsTest, DamageThatIsFoundLaterIsSaidOnce) {
  StartAll(0);
  Commit(2);
  kinds_.clear();
  Do(CheckpointVerified{kJob, 2, "its server is away", false});
  EXPECT_THAT(kinds_, ElementsAre("checkpoint_unreadable"));
  EXPECT_EQ(job().checkpoints(0).problem(), "");
  Do(CheckpointVerified{kJob, 2, "a digest differs", true});
  EXPECT_THAT(kinds_, Contains("checkpoint_damaged"));
  EXPECT_EQ(job().checkpoints(0).problem(), "a digest differs");
}

TEST_F(CheckpointsTest, WhatIsNotVerifiedYetIsVerifiedAfterARestart) {
  settings_.scrub_interval = 1000;
  StartAll(0);
  Commit(2, /*verified=*/false);
  RestartCoordinator();
  Effects effects = Do(Tick{});
  ASSERT_EQ(effects.verifications.size(), 1u);
  Do(CheckpointVerified{kJob, 2, "", false});
  EXPECT_TRUE(Do(Tick{}).verifications.empty());
  now_ += 1001;
  EXPECT_EQ(Do(Tick{}).verifications.size(), 1u) << "and again from time to time";
}

TEST_F(CheckpointsTest, EndedJobsAreVerifiedTooOneCheckpointAtATime) {
  settings_.scrub_interval = 1000;
  StartAll(0);
  Commit(2, /*verified=*/false);
  Commit(4, /*verified=*/false);
  Do(CancelRequested{kJob, false, ""});
  StopAll();
  ASSERT_EQ(job().phase(), v1::JOB_PHASE_CANCELLED);
  RestartCoordinator();
  EXPECT_THAT(Scrubbed(), ElementsAre(2));
  EXPECT_THAT(Scrubbed(), IsEmpty()) << "one is under way";
  Do(CheckpointVerified{kJob, 2, "its server is away", false});
  EXPECT_THAT(Scrubbed(), IsEmpty()) << "not at once";
  now_ += 61;
  EXPECT_THAT(Scrubbed(), ElementsAre(2));
  Do(CheckpointVerified{kJob, 2, "", false});
  EXPECT_THAT(Scrubbed(), ElementsAre(4));
  Do(CheckpointVerified{kJob, 4, "", false});
  EXPECT_THAT(Scrubbed(), IsEmpty());
  now_ += 999;
  EXPECT_THAT(Scrubbed(), IsEmpty()) << "verified not long enough ago";
  now_ += 2;
  EXPECT_THAT(Scrubbed(), ElementsAre(2));
  Do(DeleteRequested{kJob, false});
  EXPECT_THAT(Scrubbed(), IsEmpty());
}

}  // namespace
}  // namespace tercio::coordinator
