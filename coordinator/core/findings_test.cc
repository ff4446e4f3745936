// What becomes of a job whose ranks find replicas that differ, or a spike.
#include <set>
#include <string>
#include <vector>

#include "coordinator/core/core.h"
#include "coordinator/core/testing/test_job.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "plan/data_position.h"
#include "plan/rank_layout.h"

namespace tercio::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

v1::JobSpec Spec() {
  v1::JobSpec spec = SmallSpec(4);
  spec.mutable_fault_tolerance()->set_on_spike(v1::ON_SPIKE_ROLLBACK);
  return spec;
}

// One job on the nodes a and b, two ranks each; node c could replace either.
class JobRun {
 public:
  JobRun() {
    Do(Submitted{kJob, Spec()});
    for (const char* name : {"a", "b", "c"}) {
      v1::AgentHello hello;
      hello.set_node(name);
      hello.set_devices(2);
      hello.set_cores(2);
      Do(NodeAttached{hello});
    }
    Start(0);
  }

  template <typename Body>
  Effects Do(Body body) {
    now_ += 0.01;
    Effects effects = Step(state_, {now_, "token", std::move(body)}, settings_);
    for (const v1::JobEvent& event : effects.events) events_.push_back(event);
    return effects;
  }
  template <typename Fill>
  Effects Say(const std::string& node, const Fill& fill) {
    v1::AgentMessage message;
    fill(message);
    return Do(NodeSaid{node, message});
  }
  v1::RunId Present() { return RunWith(job().attempt()); }
  // From preparing to running; what the ranks were told to read.
  v1::JobSpec Start(int64_t from) {
    v1::JobSpec told;
    std::vector<Effects> effects;
    effects.push_back(Do(CheckpointFound{Present(), from, "", 0, {}}));
    for (const std::string& node : Nodes()) {
      effects.push_back(Say(node, [&](v1::AgentMessage& m) {
        *m.mutable_data_prepared()->mutable_run() = Present();
        m.mutable_data_prepared()->set_vocab_size(20);
      }));
    }
    for (const Effects& effect : effects) {
      for (const SendToNode& send : effect.messages) {
        if (send.message.has_start_run()) told = send.message.start_run().spec();
      }
    }
    for (int rank = 0; rank < 4; ++rank) {
      Say(placement().NodeOf(rank), [&](v1::AgentMessage& m) {
        *m.mutable_rank_phase()->mutable_run() = Present();
        m.mutable_rank_phase()->set_rank(rank);
        m.mutable_rank_phase()->set_phase(v1::TRAINER_PHASE_RUNNING);
      });
    }
    EXPECT_EQ(job().phase(), v1::JOB_PHASE_RUNNING) << job().error();
    return told;
  }
  std::set<std::string> Nodes() {
    std::set<std::string> nodes;
    for (const auto& [name, node] : placement().nodes()) nodes.insert(name);
    return nodes;
  }
  void Exited(int rank, const std::string& reason, int corrupt, int64_t roll_back_from) {
    Say(placement().NodeOf(rank), [&](v1::AgentMessage& m) {
      *m.mutable_rank_exited()->mutable_run() = Present();
      v1::ExitRecord* exit = m.mutable_rank_exited()->mutable_exit();
      exit->set_rank(rank);
      exit->set_exit_code(1);
      exit->set_reason(reason);
      exit->set_corrupt_rank_plus_one(corrupt);
      exit->set_roll_back_from(roll_back_from);
    });
  }
  // To the next attempt's preparation.
  void Restart() {
    for (const std::string& node : Nodes()) {
      Say(node, [&](v1::AgentMessage& m) { *m.mutable_run_stopped()->mutable_run() = Present(); });
    }
    ASSERT_EQ(job().phase(), v1::JOB_PHASE_BACKING_OFF) << job().error();
    now_ += 100;
    for (const char* name : {"a", "b", "c"}) Do(NodeSaid{name, v1::AgentMessage()});
    Do(Tick{});
    ASSERT_EQ(job().phase(), v1::JOB_PHASE_PREPARING);
  }
  void Spike(int64_t step) {
    for (int rank = 0; rank < 4; ++rank) Exited(rank, "a spike", 0, step);
  }

  const v1::JobRecord& job() { return state_.jobs.at(kJob).record; }
  const Placement& placement() { return *state_.jobs.at(kJob).placement; }
  int Faults(const std::string& node) { return state_.nodes.at(node).record.faults_size(); }
  std::vector<std::string> Told(const std::string& kind) {
    std::vector<std::string> messages;
    for (const v1::JobEvent& event : events_) {
      if (event.kind() == kind) messages.push_back(event.message());
    }
    return messages;
  }

  State state_;
  Settings settings_ = PlanningSettings();
  double now_ = 1000;
  std::vector<v1::JobEvent> events_;
};

constexpr char kOdd[] = "after step 7: the weights of rank 2 differ from those of its replicas";

TEST(Replicas, TheNodeOfTheOddRankIsBlamedWhoeverSaysItFirst) {
  JobRun run;
  const std::string guilty = run.placement().NodeOf(2);
  const std::string other = run.placement().NodeOf(0);
  ASSERT_NE(guilty, other);
  for (int rank = 0; rank < 4; ++rank) run.Exited(rank, kOdd, 3, 0);
  EXPECT_THAT(run.Told("replicas_differ"), ElementsAre(absl::StrCat("replicas differ ", kOdd)));
  EXPECT_EQ(run.Told("rank_exited").size(), 4u);
  EXPECT_EQ(run.Faults(guilty), 1);
  EXPECT_EQ(run.Faults(other), 0);
  EXPECT_EQ(run.job().crashes(), 0);
  run.Restart();
  run.Start(5);
  EXPECT_EQ(run.job().restarts(), 1);
  EXPECT_EQ(run.job().resume_step(), 5);
}

TEST(Replicas, WhoOnlyLostItsPeersIsNotBlamed) {
  JobRun run;
  const std::string guilty = run.placement().NodeOf(2);
  const std::string other = run.placement().NodeOf(0);
  run.Exited(0, "connection reset by peer", 0, 0);
  EXPECT_EQ(run.Faults(other), 1);
  run.Exited(3, kOdd, 3, 0);
  run.Exited(2, kOdd, 3, 0);
  EXPECT_EQ(run.Faults(other), 0);
  EXPECT_EQ(run.Faults(guilty), 1);
  EXPECT_THAT(run.job().error(), HasSubstr(kOdd));
  EXPECT_EQ(run.Told("replicas_differ").size(), 1u);
}

TEST(Replicas, AQuarantineForItIsTakenBack) {
  JobRun run;
  const std::string other = run.placement().NodeOf(0);
  v1::NodeRecord& record = run.state_.nodes.at(other).record;
  for (int i = 0; i < run.settings_.quarantine_faults - 1; ++i) record.add_faults(run.now_);
  run.settings_.quarantine_window = 1e9;
  // Devices for the job must remain.
  v1::AgentHello hello;
  hello.set_node("d");
  hello.set_devices(4);
  run.Do(NodeAttached{hello});
  run.Exited(0, "connection reset by peer", 0, 0);
  EXPECT_TRUE(run.state_.nodes.at(other).record.quarantined());
  run.Exited(2, kOdd, 3, 0);
  EXPECT_FALSE(run.state_.nodes.at(other).record.quarantined());
}

TEST(Replicas, OfTwoNobodyIsBlamed) {
  JobRun run;
  run.Exited(0, "after step 7: the weights of one of ranks 0 and 2 ...", -1, 0);
  EXPECT_EQ(run.Told("replicas_differ").size(), 1u);
  for (const char* node : {"a", "b", "c"}) EXPECT_EQ(run.Faults(node), 0);
  EXPECT_EQ(run.job().stop_reason(), v1::STOP_REASON_RESTART);
}

TEST(Replicas, ARankThatIsNoneHarmsNobody) {
  JobRun run;
  run.Exited(0, "nonsense", 1000, 0);
  EXPECT_EQ(run.Told("replicas_differ").size(), 1u);
  EXPECT_EQ(run.job().stop_reason(), v1::STOP_REASON_RESTART);
}

TEST(RollBack, GoesOverTheDataAndBlamesNobody) {
  JobRun run;
  run.Spike(57);
  EXPECT_EQ(run.job().roll_backs(), 1);
  for (const char* node : {"a", "b", "c"}) EXPECT_EQ(run.Faults(node), 0);
  EXPECT_THAT(run.Told("rolled_back"), IsEmpty());
  run.Restart();
  const v1::JobSpec told = run.Start(50);
  EXPECT_EQ(plan::BatchOfStep(told.training(), 50), 50);
  EXPECT_EQ(plan::BatchOfStep(told.training(), 51), 58);
  EXPECT_EQ(told.fault_tolerance().on_spike(), v1::ON_SPIKE_ROLLBACK);
  ASSERT_EQ(run.Told("rolled_back").size(), 1u);
  EXPECT_THAT(run.Told("rolled_back")[0], HasSubstr("rolls back to step 50"));
  EXPECT_EQ(run.job().restarts_used(), 1);
  EXPECT_EQ(run.job().crashes(), 0);
  // A later fault of another kind keeps it.
  run.Exited(1, "gone", 0, 0);
  run.Restart();
  EXPECT_EQ(plan::BatchOfStep(run.Start(50).training(), 51), 58);
}

TEST(RollBack, WithoutACheckpointFromTheStart) {
  JobRun run;
  run.Exited(0, "connection reset by peer", 0, 0);
  EXPECT_EQ(run.Faults(run.placement().NodeOf(0)), 1);
  run.Spike(9);
  EXPECT_EQ(run.Faults(run.placement().NodeOf(0)), 0);
  EXPECT_THAT(run.job().error(), HasSubstr("a spike"));
  run.Restart();
  EXPECT_EQ(plan::BatchOfStep(run.Start(0).training(), 1), 10);
}

TEST(RollBack, IsOnlyReportedAfterThree) {
  JobRun run;
  for (int i = 1; i <= kMostRollBacks; ++i) {
    run.Spike(20 * i);
    run.Restart();
    const v1::JobSpec told = run.Start(20 * i - 5);
    EXPECT_EQ(told.fault_tolerance().on_spike(),
              i < kMostRollBacks ? v1::ON_SPIKE_ROLLBACK : v1::ON_SPIKE_REPORT);
  }
  EXPECT_EQ(run.job().spec().fault_tolerance().on_spike(), v1::ON_SPIKE_ROLLBACK);
  const int64_t before = plan::BatchOfStep(run.job().spec().training(), 99);
  run.Spike(99);  // no trainer would ask for it any more
  EXPECT_EQ(run.job().roll_backs(), kMostRollBacks);
  run.Restart();
  EXPECT_EQ(plan::BatchOfStep(run.Start(90).training(), 99), before);
}

TEST(RollBack, SurvivesAResumeByRequest) {
  JobRun run;
  run.Spike(57);
  run.Do(CancelRequested{kJob, false, ""});
  for (const std::string& node : run.Nodes()) {
    run.Say(node,
            [&](v1::AgentMessage& m) { *m.mutable_run_stopped()->mutable_run() = run.Present(); });
  }
  ASSERT_EQ(run.job().phase(), v1::JOB_PHASE_CANCELLED);
  run.Do(ResumeRequested{kJob, Spec()});
  EXPECT_EQ(plan::BatchOfStep(run.Start(50).training(), 51), 58);
}

TEST(RollBack, IsRefusedToThoseWhoMayNotAsk) {
  for (const int64_t step : {int64_t{-1}, int64_t{101}, int64_t{1} << 50}) {
    JobRun run;
    run.Spike(step);
    EXPECT_EQ(run.job().roll_backs(), 0) << step;
    EXPECT_EQ(run.job().phase(), v1::JOB_PHASE_STOPPING);
  }
  JobRun run;
  run.state_.jobs.at(kJob).record.mutable_spec()->mutable_fault_tolerance()->set_on_spike(
      v1::ON_SPIKE_REPORT);
  run.Spike(7);
  EXPECT_EQ(run.job().roll_backs(), 0);
}

TEST(Spike, IsAnEvent) {
  JobRun run;
  run.Say(run.placement().NodeOf(0), [&](v1::AgentMessage& m) {
    *m.mutable_step_report()->mutable_run() = run.Present();
    v1::StepRecord* record = m.mutable_step_report()->mutable_record();
    record->set_step(3);
    record->set_attempt(1);
    record->set_skipped(true);
    record->set_spike("loss 9.1, usually 3.2 to 3.6");
  });
  EXPECT_THAT(run.Told("spike"),
              ElementsAre("step 3: loss 9.1, usually 3.2 to 3.6; the weights are unchanged"));
  EXPECT_THAT(run.Told("step_skipped"), IsEmpty());
}

}  // namespace
}  // namespace tercio::coordinator
