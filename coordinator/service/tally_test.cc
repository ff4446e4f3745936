// What steps of the core add up to.
#include "coordinator/service/tally.h"

#include "coordinator/core/testing/test_cluster.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// A cluster whose effects are counted.
class TallyTest : public ::testing::Test {
 protected:
  void SetUp() override {
    cluster_.settings_.first_backoff = 1;
    cluster_.Do(Submitted{kJob, SmallSpec(2)});
    cluster_.Attach("a");
    cluster_.Attach("b");
    cluster_.StartAll();
  }

  template <typename Body>
  void Do(Body body) {
    tally_.Add({cluster_.Do(std::move(body))});
  }
  // A rank ends, and the next attempt begins.
  void End(int code, int signal, const std::string& device_error = "") {
    v1::AgentMessage message;
    v1::RankExited* exited = message.mutable_rank_exited();
    *exited->mutable_run() = RunWith(cluster_.job().attempt());
    exited->mutable_exit()->set_exit_code(code);
    exited->mutable_exit()->set_signal(signal);
    exited->mutable_exit()->set_device_error(device_error);
    Do(NodeSaid{cluster_.placement().NodeOf(0), message});
    Recover();
  }
  void Recover() {
    const int attempt = cluster_.job().attempt();
    for (const std::string& node : cluster_.NodesOfJob()) {
      v1::AgentMessage message;
      *message.mutable_run_stopped()->mutable_run() = RunWith(attempt);
      Do(NodeSaid{node, message});
    }
    cluster_.now_ += 100;
    cluster_.Beat();
    Do(Tick{});
    Do(Tick{});
    ASSERT_EQ(cluster_.job().phase(), v1::JOB_PHASE_PREPARING) << cluster_.job().error();
    cluster_.StartAll();
  }
  int64_t Restarts(FaultCause cause) const {
    return tally_.Of(kJob).restarts[static_cast<size_t>(cause)];
  }

  Cluster cluster_;
  Tally tally_;
};

TEST_F(TallyTest, RestartsHaveCauses) {
  End(0, 9);
  EXPECT_EQ(Restarts(FaultCause::kKilled), 1);
  End(0, 11);
  EXPECT_EQ(Restarts(FaultCause::kCrash), 1);
  cluster_.Stepped(1);
  End(1, 0);
  EXPECT_EQ(Restarts(FaultCause::kCrash), 2);
  EXPECT_EQ(Restarts(FaultCause::kKilled), 1);
  EXPECT_EQ(Restarts(FaultCause::kDevice), 0);
  EXPECT_EQ(Restarts(FaultCause::kOther), 0);
}

TEST_F(TallyTest, ALostNodeIsACause) {
  const std::string lost = cluster_.placement().NodeOf(0);
  // Nothing more is heard of it.
  for (int i = 0; i < 20; ++i) {
    cluster_.now_ += 1;
    for (const char* node : {"a", "b"}) {
      if (node != lost) Do(NodeSaid{node, v1::AgentMessage()});
    }
    Do(Tick{});
  }
  EXPECT_EQ(Restarts(FaultCause::kNodeLost), 1);
}

TEST(NamesOfCauses, AreDistinct) {
  std::set<std::string> names;
  for (int i = 0; i < kFaultCauses; ++i) names.insert(NameOf(static_cast<FaultCause>(i)));
  EXPECT_EQ(names.size(), static_cast<size_t>(kFaultCauses));
  names.clear();
  for (int i = 0; i < kSaveFailures; ++i) names.insert(NameOf(static_cast<SaveFailure>(i)));
  EXPECT_EQ(names.size(), static_cast<size_t>(kSaveFailures));
}

TEST_F(TallyTest, CheckpointsEndInTime) {
  const v1::RunId run = RunWith(1);
  Do(CheckpointCommitted{run, 10, "path", 1, 0.5});
  Do(CheckpointCommitted{run, 10, "path", 1, 0.5});  // said twice
  Do(CheckpointFailed{run, 20, "no room", SaveFailure::kDiskFull});
  const JobTally tally = tally_.Of(kJob);
  EXPECT_EQ(tally.saves.sum, 0.5);
  EXPECT_EQ(tally.save_failures[static_cast<size_t>(SaveFailure::kDiskFull)], 1);
}

TEST_F(TallyTest, CountsMessagesOfAttemptsThatAreOver) {
  EXPECT_EQ(tally_.fenced(), 0);
  Do(CheckpointFailed{RunWith(0), 20, "late"});
  Do(CheckpointFailed{RunWith(1), 20, "in time"});
  EXPECT_EQ(tally_.fenced(), 1);
}

v1::StepRecord StepOf(int attempt, int64_t step) {
  v1::StepRecord record;
  record.set_attempt(attempt);
  record.set_step(step);
  record.set_step_seconds(0.25);
  record.set_learning_rate(1e-3);
  record.set_grad_norm(2);
  return record;
}

TEST(Tally, CountsAStepOnceHoweverOftenItIsTold) {
  Tally tally;
  std::vector<Effects> effects(1);
  for (const int64_t step : {1, 2, 2, 1}) effects[0].steps.emplace_back("j", StepOf(1, step));
  tally.Add(effects);
  EXPECT_EQ(tally.Of("j").steps.sum, 0.5);
  effects[0].steps.clear();
  v1::StepRecord again = StepOf(2, 1);  // the next attempt's, from an older checkpoint
  again.set_skipped(true);
  again.set_spike("loss 9");
  again.set_loss_scale(1024);
  effects[0].steps.emplace_back("j", again);
  tally.Add(effects);
  const JobTally job = tally.Of("j");
  EXPECT_EQ(job.steps.sum, 0.75);
  EXPECT_EQ(job.skipped, 1);
  EXPECT_EQ(job.spikes, 1);
  EXPECT_EQ(job.loss_scale, 1024);
  EXPECT_EQ(job.learning_rate, 1e-3);
  EXPECT_EQ(job.gradient_norm, 2);
}

TEST(Tally, StragglersAreThoseOfNow) {
  Tally tally;
  const auto note = [&](const char* kind, int rank) {
    std::vector<Effects> effects(1);
    v1::JobEvent& event = effects[0].events.emplace_back();
    event.set_job_id("j");
    event.set_kind(kind);
    event.set_rank(rank);
    tally.Add(effects);
  };
  note("straggler", 1);
  note("straggler", 2);
  note("straggler_recovered", 1);
  note("hang", 3);
  EXPECT_THAT(tally.Of("j").slow, ElementsAre(2));
  EXPECT_EQ(tally.Of("j").hangs, 1);
  note("attempt_started", -1);
  EXPECT_THAT(tally.Of("j").slow, IsEmpty());
  EXPECT_EQ(tally.events().at("straggler"), 2);
}

TEST(Tally, KeepsTheJobsThatChangedLast) {
  Tally tally;
  for (int i = 0; i < 1000; ++i) {
    std::vector<Effects> effects(1);
    effects[0].steps.emplace_back("old but busy", StepOf(1, i + 1));
    effects[0].steps.emplace_back("j" + std::to_string(i), StepOf(1, 1));
    tally.Add(effects);
  }
  EXPECT_GT(tally.Of("old but busy").steps.sum, 200);
  EXPECT_GT(tally.Of("j999").steps.sum, 0);
  EXPECT_EQ(tally.Of("j0").steps.sum, 0);
}

}  // namespace
}  // namespace tercio::coordinator
