// Epochs, the best checkpoint, and the outcome of the test data.
#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "coordinator/core/checkpoints.h"
#include "coordinator/core/testing/test_cluster.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "plan/quality.h"

namespace tercio::coordinator {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class EvaluationsTest : public ::testing::Test, public Cluster {
 protected:
  static v1::JobSpec Spec() {
    v1::JobSpec spec = SmallSpec(2);
    spec.mutable_training()->mutable_evaluate()->set_keep_best(v1::QUALITY_METRIC_ACCURACY);
    spec.mutable_checkpoint()->set_keep_last(1);
    spec.mutable_data()->set_test_path("/test.jsonl");
    return spec;
  }
  void Submit(const v1::JobSpec& spec) {
    Attach("a");
    Do(Submitted{kJob, spec});
  }
  v1::StepRecord Evaluated(int64_t step, double accuracy) {
    v1::StepRecord record;
    record.set_step(step);
    record.set_attempt(job().attempt());
    record.set_validation_loss(1);
    record.set_validation_accuracy(accuracy);
    return record;
  }
  // As trainers report and save it: the record comes with the checkpoint, and from the node.
  void EvaluateAndSave(int64_t step, double accuracy, bool verified = true) {
    const v1::StepRecord record = Evaluated(step, accuracy);
    Do(StepsDone{RunWith(job().attempt()), {record}});
    Commit(step, verified);
    Report(record);
  }
  void Report(const v1::StepRecord& record, const v1::Evaluation& validation = {}) {
    Say(placement().NodeOf(0), [&](v1::AgentMessage& m) {
      *m.mutable_step_report()->mutable_run() = RunWith(job().attempt());
      *m.mutable_step_report()->mutable_record() = record;
      if (validation.step() > 0) *m.mutable_step_report()->mutable_validation() = validation;
    });
  }
  void Commit(int64_t step, bool verified = true) {
    last_ =
        Do(CheckpointCommitted{RunWith(job().attempt()), step, "path", 1, 0, "digest", verified});
  }
  std::vector<int64_t> Removed() const {
    std::vector<int64_t> steps;
    for (const RemoveCheckpoint& removal : last_.removals) steps.push_back(removal.step);
    return steps;
  }
  // As the disk does it.
  void Remove() {
    for (const RemoveCheckpoint& removal : Effects(last_).removals) {
      Do(CheckpointRemoved{kJob, removal.step, removal.attempt});
    }
  }
  v1::Evaluation Classified(int64_t step) {
    v1::Evaluation evaluation;
    evaluation.set_step(step);
    evaluation.set_loss(0.5);
    *evaluation.mutable_confusion() = plan::EmptyConfusion(2);
    plan::Count(1, 1, evaluation.mutable_confusion());
    return evaluation;
  }
  void Tested(const v1::Evaluation& evaluation) {
    last_ = Say(placement().NodeOf(0), [&](v1::AgentMessage& m) {
      *m.mutable_test_evaluated()->mutable_run() = RunWith(job().attempt());
      *m.mutable_test_evaluated()->mutable_evaluation() = evaluation;
    });
  }
  void EndAll() {
    for (int rank = 0; rank < placement().ranks(); ++rank) Exited(rank, 0);
    StopAll();
  }
  // The order that the nodes of the next attempt get.
  v1::StartRun StartFrom(int64_t step) {
    const int attempt = job().attempt();
    Do(CheckpointFound{RunWith(attempt), step, "path", 1, {}, {}});
    const Effects effects = Say("a", [&](v1::AgentMessage& m) {
      *m.mutable_data_prepared()->mutable_run() = RunWith(attempt);
      m.mutable_data_prepared()->set_vocab_size(20);
      m.mutable_data_prepared()->set_digest(data_);
      m.mutable_data_prepared()->set_train_samples(train_samples_);
    });
    for (const SendToNode& send : effects.messages) {
      if (send.message.has_start_run()) return send.message.start_run();
    }
    ADD_FAILURE() << "nothing is started: " << job().error();
    return {};
  }
  v1::JobRecord& record() { return state_.jobs.at(kJob).record; }
};

TEST_F(EvaluationsTest, StepsFollowFromTheSamples) {
  v1::JobSpec spec = SmallSpec(2);
  spec.mutable_training()->set_global_batch(8);
  spec.mutable_training()->set_steps(0);
  spec.mutable_training()->set_epochs(3);
  train_samples_ = 50;
  Submit(spec);
  EXPECT_EQ(job().spec().training().steps(), 0);
  StartAll();
  EXPECT_EQ(job().train_samples(), 50);
  EXPECT_EQ(job().spec().training().steps(), 19);
  EXPECT_EQ(job().spec().training().schedule().decay_steps(), 19);
  Stepped(19);
  Committed(19);
  EndAll();
  EXPECT_EQ(job().phase(), v1::JOB_PHASE_SUCCEEDED);
  // As many epochs are no more steps, more are.
  v1::JobSpec longer = spec;
  *longer.mutable_training()->mutable_schedule() = job().spec().training().schedule();
  EXPECT_THAT(std::string(Do(ResumeRequested{kJob, longer}).answer.message()),
              HasSubstr("more epochs: --set training.epochs=N"));
  longer.mutable_training()->set_epochs(4);
  EXPECT_TRUE(Do(ResumeRequested{kJob, longer}).answer.ok());
  EXPECT_EQ(job().spec().training().steps(), 25);
  StartAll(19);
  EXPECT_EQ(job().spec().training().steps(), 25);
  // The schedule is the one that the job was submitted with.
  EXPECT_EQ(job().spec().training().schedule().decay_steps(), 19);
}

TEST_F(EvaluationsTest, AnOlderAgentIsNamedByWhatItLacks) {
  train_samples_ = 0;
  Submit(Spec());
  StartAll();
  EXPECT_EQ(job().phase(), v1::JOB_PHASE_FAILED);
  EXPECT_THAT(job().error(), HasSubstr("node a has an agent of version"));
  EXPECT_THAT(job().error(), HasSubstr("data.test: upgrade the agent"));
}

TEST_F(EvaluationsTest, JobsOfOlderVersionsRunOnOlderAgents) {
  train_samples_ = 0;
  Submit(SmallSpec(2));
  StartAll();
  EXPECT_EQ(job().phase(), v1::JOB_PHASE_RUNNING);
}

TEST_F(EvaluationsTest, TheBestCommittedStepIsKept) {
  Submit(Spec());
  StartAll();
  EXPECT_FALSE(job().has_best());
  EvaluateAndSave(2, 0.6);
  EXPECT_EQ(job().best().step(), 2);
  EXPECT_EQ(job().best().value(), 0.6);
  EvaluateAndSave(3, 0.9);
  EXPECT_EQ(job().best().step(), 3);
  EXPECT_THAT(Removed(), ElementsAre(2));
  Remove();
  // The newest and the best.
  EvaluateAndSave(4, 0.7);
  EXPECT_THAT(Removed(), ElementsAre());
  EvaluateAndSave(5, 0.9);  // as good: the first one stays
  EXPECT_EQ(job().best().step(), 3);
  EXPECT_THAT(Removed(), ElementsAre(4));
  EXPECT_THAT(kinds_, Contains("best_checkpoint").Times(2));
}

TEST_F(EvaluationsTest, AStepWithoutItsCheckpointIsNotTheBest) {
  Submit(Spec());
  StartAll();
  EvaluateAndSave(2, 0.6);
  Report(Evaluated(3, 0.9));
  EXPECT_EQ(job().best().step(), 2);
  // All parts of this one came, and its commit failed.
  Do(StepsDone{RunWith(1), {Evaluated(3, 0.9)}});
  EXPECT_EQ(job().candidates_size(), 1);
  EXPECT_EQ(job().best().step(), 2);
  EvaluateAndSave(4, 0.7);
  EXPECT_EQ(job().best().step(), 4);
  // It may have become visible nevertheless.
  EXPECT_EQ(job().candidates_size(), 1);
}

TEST_F(EvaluationsTest, CandidatesAreBounded) {
  Submit(Spec());
  StartAll();
  for (int i = 1; i <= 50; ++i) {
    for (int times = 0; times < 2; ++times) Do(StepsDone{RunWith(1), {Evaluated(i, i / 100.0)}});
    // Steps are named by the attempt that made them.
    Do(StepsDone{RunWith(0), {Evaluated(90, 0.99)}});
  }
  EXPECT_LE(job().candidates_size(), 4);
  Commit(50);
  EXPECT_EQ(job().best().step(), 50);
  EXPECT_EQ(job().best().value(), 0.5);
}

// The previous best is no more than replaced: until the bytes of the new one were read, both stay.
TEST_F(EvaluationsTest, AnUnreadBestTakesNoOthersPlace) {
  Submit(Spec());
  StartAll();
  EvaluateAndSave(2, 0.6);
  EvaluateAndSave(3, 0.9, /*verified=*/false);
  EXPECT_EQ(job().best().step(), 3);
  Do(CheckpointVerified{kJob, 3, "", false});
  EvaluateAndSave(4, 0.95, /*verified=*/false);
  EvaluateAndSave(5, 0.1);
  // 3 is the best of those that were read.
  EXPECT_THAT(Removed(), ElementsAre(2));
  last_ = Do(CheckpointVerified{kJob, 4, "", false});
  EXPECT_THAT(Removed(), Contains(3));
  EXPECT_THAT(Removed(), Not(Contains(4)));
}

TEST_F(EvaluationsTest, RanksAreToldOfTheBestOfTheirHistory) {
  Submit(Spec());
  StartAll();
  EvaluateAndSave(2, 0.6);
  EvaluateAndSave(3, 0.9);
  EvaluateAndSave(4, 0.7);
  Break();
  EXPECT_EQ(StartFrom(4).best().step(), 3);
  EXPECT_THAT(kinds_, Not(Contains("best_lost")));
}

TEST_F(EvaluationsTest, WhatLiesBehindAStartIsForgotten) {
  v1::JobSpec spec = Spec();
  spec.mutable_checkpoint()->set_keep_last(3);
  Submit(spec);
  StartAll();
  EvaluateAndSave(2, 0.6);
  EvaluateAndSave(3, 0.9);
  Report(Evaluated(4, 0.8), Classified(4));
  EXPECT_EQ(job().validation().step(), 4);
  Do(CancelRequested{kJob});
  StopAll();
  ResumeRequested resume{kJob, job().spec()};
  resume.from_step = 2;
  ASSERT_TRUE(Do(resume).answer.ok());
  // The better one is of the steps that were given up.
  EXPECT_EQ(StartFrom(2).best().step(), 2);
  EXPECT_FALSE(job().has_validation());
}

TEST_F(EvaluationsTest, ADamagedBestIsReported) {
  v1::JobSpec spec = Spec();
  spec.mutable_checkpoint()->set_keep_last(3);
  Submit(spec);
  StartAll();
  EvaluateAndSave(2, 0.6);
  EvaluateAndSave(3, 0.9);
  EvaluateAndSave(4, 0.5);
  Do(CheckpointVerified{kJob, 3, "its checksum differs", true});
  // The ranks of this attempt know it as the best.
  EXPECT_EQ(job().best().step(), 3);
  Break();
  EXPECT_EQ(StartFrom(4).best().step(), 2);
  EXPECT_THAT(kinds_, Contains("best_lost"));
}

// The coordinator died between the commit on the disk and its record; so did the trainers.
TEST_F(EvaluationsTest, AnUnrecordedCheckpointHasTheValueOfItsStep) {
  Submit(Spec());
  StartAll();
  EvaluateAndSave(2, 0.6);
  Do(StepsDone{RunWith(job().attempt()), {Evaluated(3, 0.9)}});
  RestartCoordinator();
  Attach("a");
  EXPECT_EQ(job().phase(), v1::JOB_PHASE_STOPPING);
  StopAll();
  now_ += 100;
  Beat();
  Do(Tick{});
  v1::CheckpointRecord there;
  there.set_step(3);
  there.set_attempt(1);
  Do(CheckpointFound{RunWith(job().attempt()), 3, "path", 1, {}, {there}});
  EXPECT_EQ(BestCheckpoint(job())->step(), 3);
  EXPECT_EQ(StartFrom(3).best().value(), 0.9);
}

// The attempt was stopped while its last checkpoint became visible.
TEST_F(EvaluationsTest, ACheckpointOfAnAttemptThatIsOverHasTheValueOfItsStep) {
  Submit(Spec());
  StartAll();
  EvaluateAndSave(2, 0.6);
  const v1::StepRecord late = Evaluated(3, 0.9);
  Break();
  Do(StepsDone{RunWith(1), {late}});
  now_ += 100;
  Beat();
  Do(Tick{});
  v1::CheckpointRecord there;
  there.set_step(3);
  there.set_attempt(1);
  Do(CheckpointFound{RunWith(job().attempt()), 3, "path", 1, {}, {there}});
  EXPECT_EQ(BestCheckpoint(job())->step(), 3);
}

TEST_F(EvaluationsTest, AnotherMetricStartsOver) {
  Submit(Spec());
  StartAll();
  EvaluateAndSave(2, 0.6);
  Do(CancelRequested{kJob});
  StopAll();
  v1::JobSpec spec = job().spec();
  spec.mutable_training()->mutable_evaluate()->set_keep_best(v1::QUALITY_METRIC_LOSS);
  ASSERT_TRUE(Do(ResumeRequested{kJob, spec}).answer.ok());
  EXPECT_FALSE(job().has_best());
  EXPECT_FALSE(StartFrom(2).has_best());
}

TEST_F(EvaluationsTest, TestDataIsEvaluatedBeforeTheJobSucceeds) {
  v1::JobSpec spec = Spec();
  spec.mutable_training()->set_steps(4);
  Submit(spec);
  StartAll();
  EvaluateAndSave(3, 0.9);
  EvaluateAndSave(4, 0.8);
  EXPECT_EQ(job().ledger().present(), v1::TIME_KIND_PRODUCTIVE);
  EndAll();
  // Its ranks have ended too early: the next attempt does the rest.
  EXPECT_EQ(job().phase(), v1::JOB_PHASE_BACKING_OFF);
  EXPECT_THAT(job().error(), HasSubstr("without a result for data.test"));
  now_ += 100;
  Beat();
  Do(Tick{});
  StartAll(4);
  EXPECT_EQ(job().ledger().present(), v1::TIME_KIND_PRODUCTIVE);
  Tested(Classified(3));
  EXPECT_THAT(kinds_, Contains("test_evaluated"));
  EXPECT_THAT(kinds_, Not(Contains("best_lost")));
  EndAll();
  EXPECT_EQ(job().phase(), v1::JOB_PHASE_SUCCEEDED);
  EXPECT_EQ(job().test().step(), 3);
  EXPECT_EQ(plan::QualityOf(job().test().confusion()).accuracy, 1);
  // A job that is lengthened has a new end.
  v1::JobSpec longer = job().spec();
  longer.mutable_training()->set_steps(6);
  ASSERT_TRUE(Do(ResumeRequested{kJob, longer}).answer.ok());
  StartFrom(4);
  EXPECT_FALSE(job().has_test());
}

TEST_F(EvaluationsTest, ATestWithOtherWeightsThanTheBestIsReported) {
  Submit(Spec());
  StartAll();
  v1::Evaluation test = Classified(4);
  test.set_problem("the best checkpoint, of step 3, cannot be loaded: its checksum differs");
  // What is no table of classes is not believed.
  test.mutable_confusion()->add_counts(-1);
  Tested(test);
  EXPECT_THAT(kinds_, Contains("best_lost"));
  EXPECT_FALSE(job().test().has_confusion());
  EXPECT_EQ(job().test().problem(), test.problem());
}

TEST_F(EvaluationsTest, AJobOfNoStepsOnlyEvaluates) {
  v1::JobSpec spec = Spec();
  spec.mutable_training()->set_steps(0);
  Submit(spec);
  StartAll();
  EXPECT_EQ(job().ledger().present(), v1::TIME_KIND_PRODUCTIVE);
  Tested(Classified(0));
  EndAll();
  EXPECT_EQ(job().phase(), v1::JOB_PHASE_SUCCEEDED);
}

}  // namespace
}  // namespace tercio::coordinator
