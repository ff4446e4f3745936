// Every (phase, event) pair of the core: what a job may become, and that events of the past change
// nothing.
#include "coordinator/core/core.h"

#include <functional>
#include <limits>
#include <map>

#include "coordinator/core/testing/test_job.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "plan/rank_layout.h"

namespace tercio::coordinator {
namespace {

using ::testing::HasSubstr;

constexpr char kNode[] = "node";

// Two ranks that share each layer.
v1::JobSpec Spec() {
  v1::JobSpec spec = SmallSpec(1);
  spec.mutable_training()->set_steps(10);
  spec.mutable_training()->set_global_batch(4);
  spec.mutable_parallelism()->set_tensor(2);
  spec.mutable_resources()->set_ranks(2);
  spec.mutable_fault_tolerance()->set_max_restarts(2);
  return spec;
}

v1::AgentHello Hello(bool running) {
  v1::AgentHello hello;
  hello.set_node(kNode);
  hello.set_devices(2);
  hello.set_cores(2);
  if (running) {
    hello.add_running()->set_job_id(kJob);
    hello.mutable_running(0)->set_attempt(1);
  }
  return hello;
}

class Machine {
 public:
  template <typename Body>
  Effects Do(Body body) {
    now_ += 0.01;
    return Step(state_, {now_, "token", std::move(body)}, settings_);
  }
  template <typename Fill>
  Effects Say(const Fill& fill) {
    v1::AgentMessage message;
    fill(message);
    return Do(NodeSaid{kNode, message});
  }
  void Prepared(int attempt, const std::string& error = "") {
    Say([&](v1::AgentMessage& m) {
      *m.mutable_data_prepared()->mutable_run() = RunWith(attempt);
      m.mutable_data_prepared()->set_vocab_size(20);
      m.mutable_data_prepared()->set_error(error);
    });
  }
  void Phase(int attempt, int rank) {
    Say([&](v1::AgentMessage& m) {
      *m.mutable_rank_phase()->mutable_run() = RunWith(attempt);
      m.mutable_rank_phase()->set_rank(rank);
      m.mutable_rank_phase()->set_phase(v1::TRAINER_PHASE_RUNNING);
    });
  }
  void Exited(int attempt, int rank, int code, bool permanent = false) {
    Say([&](v1::AgentMessage& m) {
      *m.mutable_rank_exited()->mutable_run() = RunWith(attempt);
      m.mutable_rank_exited()->mutable_exit()->set_rank(rank);
      m.mutable_rank_exited()->mutable_exit()->set_exit_code(code);
      m.mutable_rank_exited()->mutable_exit()->set_permanent(permanent);
    });
  }
  void Stopped(int attempt) {
    Say([&](v1::AgentMessage& m) { *m.mutable_run_stopped()->mutable_run() = RunWith(attempt); });
  }
  void Stepped(int attempt, int64_t step) {
    Say([&](v1::AgentMessage& m) {
      *m.mutable_step_report()->mutable_run() = RunWith(attempt);
      m.mutable_step_report()->mutable_record()->set_step(step);
      m.mutable_step_report()->mutable_record()->set_attempt(attempt);
    });
  }
  void Wait(double seconds) { now_ += seconds; }
  const v1::JobRecord& job() { return state_.jobs.at(kJob).record; }
  State& state() { return state_; }
  double now() const { return now_; }

  // Brings a fresh job into a phase, by the shortest way.
  void Reach(v1::JobPhase phase) {
    Do(Submitted{kJob, Spec()});
    if (phase == v1::JOB_PHASE_QUEUED) return;
    Do(NodeAttached{Hello(false)});
    if (phase == v1::JOB_PHASE_PREPARING) return;
    if (phase == v1::JOB_PHASE_CANCELLED) {
      Do(CancelRequested{kJob, false, "stop"});
      return;
    }
    Do(CheckpointFound{RunWith(1), 0, "", 0, {}});
    Prepared(1, phase == v1::JOB_PHASE_FAILED ? "no data" : "");
    if (phase == v1::JOB_PHASE_STARTING || phase == v1::JOB_PHASE_FAILED) return;
    Phase(1, 0);
    Phase(1, 1);
    if (phase == v1::JOB_PHASE_RUNNING) return;
    if (phase == v1::JOB_PHASE_SUCCEEDED) {
      Stepped(1, 10);
      Exited(1, 0, 0);
      Exited(1, 1, 0);
      Stopped(1);
      return;
    }
    Exited(1, 0, 1);
    if (phase == v1::JOB_PHASE_STOPPING) return;
    Stopped(1);
  }

 private:
  State state_;
  Settings settings_ = PlanningSettings();
  double now_ = 1000;
};

struct Stimulus {
  const char* name;
  std::function<void(Machine&)> apply;
};

const std::vector<Stimulus>& Stimuli() {
  static const auto* stimuli = new std::vector<Stimulus>{
      {"cancel",
       [](Machine& m) {
         m.Do(CancelRequested{kJob, false, "stop"});
       }},
      {"cancel and save",
       [](Machine& m) {
         m.Do(CancelRequested{kJob, true, "stop"});
       }},
      {"resume",
       [](Machine& m) {
         m.Do(ResumeRequested{kJob, Spec()});
       }},
      {"attach, idle", [](Machine& m) { m.Do(NodeAttached{Hello(false)}); }},
      {"attach, running", [](Machine& m) { m.Do(NodeAttached{Hello(true)}); }},
      {"detach", [](Machine& m) { m.Do(NodeDetached{kNode}); }},
      {"lease over",
       [](Machine& m) {
         m.Wait(100);
         m.Do(Tick{});
       }},
      {"tick", [](Machine& m) { m.Do(Tick{}); }},
      {"prepared", [](Machine& m) { m.Prepared(1); }},
      {"not prepared", [](Machine& m) { m.Prepared(1, "no such file"); }},
      {"checkpoint found",
       [](Machine& m) {
         m.Do(CheckpointFound{RunWith(1), 5, "p", 1, {}});
       }},
      {"rank runs", [](Machine& m) { m.Phase(1, 0); }},
      {"step", [](Machine& m) { m.Stepped(1, 3); }},
      {"exit 0", [](Machine& m) { m.Exited(1, 0, 0); }},
      {"exit 1", [](Machine& m) { m.Exited(1, 0, 1); }},
      {"exit 3, permanent", [](Machine& m) { m.Exited(1, 0, 3, true); }},
      {"exit 4", [](Machine& m) { m.Exited(1, 0, 4); }},
      {"run stopped", [](Machine& m) { m.Stopped(1); }},
      {"checkpoint committed",
       [](Machine& m) {
         m.Do(CheckpointCommitted{RunWith(1), 5, "p", 1});
       }},
      {"checkpoint verified",
       [](Machine& m) {
         m.Do(CheckpointVerified{kJob, 5, "", false});
       }},
      {"checkpoint damaged",
       [](Machine& m) {
         m.Do(CheckpointVerified{kJob, 5, "bad", true});
       }},
      {"checkpoint removed",
       [](Machine& m) {
         m.Do(CheckpointRemoved{kJob, 5, 1});
       }},
      {"no checkpoint readable",
       [](Machine& m) {
         m.Do(CheckpointFound{RunWith(1), 0, "", 0, {{5, "permission denied", false}}});
       }},
      {"save", [](Machine& m) { m.Do(SaveRequested{kJob}); }},
      {"delete", [](Machine& m) { m.Do(DeleteRequested{kJob}); }},
      {"checkpoint failed",
       [](Machine& m) {
         m.Do(CheckpointFailed{RunWith(1), 5, "full"});
       }},
  };
  return *stimuli;
}

constexpr v1::JobPhase kGone = v1::JOB_PHASE_UNSPECIFIED;  // the job is not known any more

// phase -> stimulus -> phase; what is not named changes nothing.
using Expected = std::map<v1::JobPhase, std::map<std::string, v1::JobPhase>>;

Expected Table() {
  using enum v1::JobPhase;
  const auto Q = v1::JOB_PHASE_QUEUED;
  const auto P = v1::JOB_PHASE_PREPARING;
  const auto S = v1::JOB_PHASE_STOPPING;
  const auto B = v1::JOB_PHASE_BACKING_OFF;
  const auto F = v1::JOB_PHASE_FAILED;
  const auto C = v1::JOB_PHASE_CANCELLED;
  return {
      {Q, {{"cancel", C}, {"cancel and save", C}, {"attach, idle", P}, {"attach, running", P}}},
      {P, {{"cancel", C}, {"cancel and save", C}, {"lease over", Q}, {"not prepared", F}}},
      {v1::JOB_PHASE_STARTING,
       {{"cancel", S},
        {"cancel and save", S},
        {"attach, idle", S},
        {"lease over", B},
        {"step", v1::JOB_PHASE_RUNNING},
        {"exit 1", S},
        {"exit 3, permanent", S},
        {"exit 4", S},
        {"run stopped", B}}},
      {v1::JOB_PHASE_RUNNING,
       {{"cancel", S},
        {"cancel and save", S},
        {"attach, idle", S},
        {"lease over", B},
        {"exit 1", S},
        {"exit 3, permanent", S},
        {"exit 4", S},
        {"run stopped", B}}},
      {S, {{"attach, idle", B}, {"lease over", B}, {"run stopped", B}}},
      {B, {{"cancel", C}, {"cancel and save", C}, {"lease over", Q}}},
      {v1::JOB_PHASE_SUCCEEDED, {{"delete", kGone}}},  // a resume needs more steps
      {F, {{"resume", P}, {"delete", kGone}}},
      {C, {{"resume", P}, {"delete", kGone}}},
  };
}

TEST(CoreTable, EveryPhaseAndEvent) {
  for (const auto& [phase, transitions] : Table()) {
    for (const Stimulus& stimulus : Stimuli()) {
      SCOPED_TRACE(v1::JobPhase_Name(phase) + " + " + stimulus.name);
      Machine machine;
      machine.Reach(phase);
      ASSERT_EQ(machine.job().phase(), phase);
      stimulus.apply(machine);
      const auto found = transitions.find(stimulus.name);
      const v1::JobPhase expected = found == transitions.end() ? phase : found->second;
      const bool known = machine.state().jobs.contains(kJob);
      const v1::JobPhase now = known ? machine.job().phase() : v1::JOB_PHASE_UNSPECIFIED;
      EXPECT_EQ(v1::JobPhase_Name(now), v1::JobPhase_Name(expected));
    }
  }
}

TEST(Core, EventsOfAnOlderAttemptChangeNothing) {
  Machine machine;
  machine.Reach(v1::JOB_PHASE_BACKING_OFF);
  machine.Wait(5);
  machine.Do(Tick{});
  ASSERT_EQ(machine.job().phase(), v1::JOB_PHASE_PREPARING);
  ASSERT_EQ(machine.job().attempt(), 2);
  const std::string before = machine.job().SerializeAsString();
  machine.Exited(1, 0, 1);
  machine.Stepped(1, 9);
  machine.Stopped(1);
  machine.Prepared(1, "old");
  machine.Do(CheckpointCommitted{RunWith(1), 9, "old", 1});
  EXPECT_EQ(machine.job().SerializeAsString(), before);
}

TEST(Core, TheRestartBudgetEndsAndAResumeGivesAFreshOne) {
  Machine machine;
  machine.Reach(v1::JOB_PHASE_BACKING_OFF);
  for (int attempt = 2; attempt <= 3; ++attempt) {
    machine.Wait(10);
    machine.Do(NodeAttached{Hello(false)});
    machine.Do(Tick{});
    ASSERT_EQ(machine.job().attempt(), attempt);
    machine.Do(CheckpointFound{RunWith(attempt), 0, "", 0, {}});
    machine.Prepared(attempt);
    machine.Exited(attempt, 1, 1);
    machine.Stopped(attempt);
  }
  EXPECT_EQ(machine.job().phase(), v1::JOB_PHASE_FAILED);
  EXPECT_THAT(machine.job().error(), HasSubstr("max_restarts"));
  EXPECT_EQ(machine.job().restarts(), 2);
  machine.Do(ResumeRequested{kJob, Spec()});
  EXPECT_EQ(machine.job().restarts_used(), 0);
  EXPECT_EQ(machine.job().attempt(), 4);
}

// Nodes read model.from only while there is no checkpoint to go on from.
TEST(Core, TheFirstWeightsAreCheckedUntilThereIsACheckpoint) {
  const auto from_start = [](const Effects& effects) {
    int told = -1;
    for (const auto& message : effects.messages) {
      if (message.message.has_prepare_data()) told = message.message.prepare_data().from_start();
    }
    return told;
  };
  for (const bool saved : {false, true}) {
    Machine machine;
    machine.Reach(v1::JOB_PHASE_QUEUED);
    EXPECT_EQ(from_start(machine.Do(NodeAttached{Hello(false)})), 1);
    machine.Do(CheckpointFound{RunWith(1), 0, "", 0, {}});
    machine.Prepared(1);
    if (saved) machine.Do(CheckpointCommitted{RunWith(1), 5, "p", 1});
    machine.Exited(1, 0, 1);
    machine.Stopped(1);
    machine.Wait(5);
    EXPECT_EQ(from_start(machine.Do(Tick{})), saved ? 0 : 1);
  }
}

TEST(Core, ASkippedStepIsAnEventOnce) {
  Machine machine;
  machine.Reach(v1::JOB_PHASE_RUNNING);
  const auto skip = [&](int64_t step) {
    return machine.Say([&](v1::AgentMessage& m) {
      *m.mutable_step_report()->mutable_run() = RunWith(1);
      v1::StepRecord* record = m.mutable_step_report()->mutable_record();
      record->set_step(step);
      record->set_attempt(1);
      record->set_loss(2.5);
      record->set_grad_norm(std::numeric_limits<double>::infinity());
      record->set_loss_scale(65536);
      record->set_skipped(true);
    });
  };
  const Effects effects = skip(7);
  ASSERT_EQ(effects.steps.size(), 1u);
  EXPECT_TRUE(effects.steps[0].second.skipped());
  ASSERT_EQ(effects.events.size(), 1u);
  EXPECT_EQ(effects.events[0].kind(), "step_skipped");
  EXPECT_EQ(effects.events[0].message(),
            "step 7 was skipped: its loss is 2.5, its gradient norm inf, its loss scale 65536");
  EXPECT_TRUE(skip(7).events.empty());
}

TEST(Core, ASucceededJobGoesOnOnlyWithMoreSteps) {
  Machine machine;
  machine.Reach(v1::JOB_PHASE_RUNNING);
  machine.Stepped(1, 10);
  machine.Exited(1, 0, 0);
  machine.Exited(1, 1, 0);
  machine.Stopped(1);
  ASSERT_EQ(machine.job().phase(), v1::JOB_PHASE_SUCCEEDED);
  EXPECT_FALSE(machine.Do(ResumeRequested{kJob, Spec()}).answer.ok());
  v1::JobSpec longer = Spec();
  longer.mutable_training()->set_steps(20);
  EXPECT_TRUE(machine.Do(ResumeRequested{kJob, longer}).answer.ok());
}

// However many there are: neither a tick nor what nodes say goes through them.
TEST(Core, WhatHasEndedCostsNothingAnyMore) {
  constexpr int kEnded = 10'000;
  Machine machine;
  for (int i = 0; i < kEnded; ++i) {
    const std::string id = "old-" + std::to_string(i);
    machine.Do(Submitted{id, Spec()});
    machine.Do(CancelRequested{id, false, ""});
  }
  machine.Reach(v1::JOB_PHASE_RUNNING);
  machine.Do(Tick{});
  const JobTable& jobs = machine.state().jobs;
  EXPECT_EQ(jobs.size(), size_t{kEnded + 1});
  EXPECT_EQ(jobs.Active().size(), 1u);
  EXPECT_EQ(jobs.ended().at(v1::JOB_PHASE_CANCELLED), kEnded);
  const int64_t before = jobs.walks();
  for (int tick = 0; tick < 50; ++tick) {
    machine.Wait(0.1);
    machine.Do(Tick{});
    machine.Stepped(1, tick % 5 + 1);
  }
  machine.Do(NodeAttached{Hello(true)});
  machine.Do(CheckpointVerified{kJob, 1, "", false});
  machine.Wait(100'000);
  machine.Do(Tick{});
  EXPECT_EQ(jobs.walks(), before);
}

TEST(Core, AJobThatGoesOnHasNotEnded) {
  Machine machine;
  machine.Reach(v1::JOB_PHASE_CANCELLED);
  const JobTable& jobs = machine.state().jobs;
  EXPECT_TRUE(jobs.Active().empty());
  EXPECT_EQ(jobs.EndedSince(machine.now()).size(), 1u);
  EXPECT_TRUE(jobs.EndedBefore(machine.now()).empty());
  EXPECT_EQ(jobs.EndedBefore(machine.now() + 1).size(), 1u);
  machine.Do(ResumeRequested{kJob, Spec()});
  EXPECT_EQ(jobs.Active().size(), 1u);
  EXPECT_TRUE(jobs.EndedSince(0).empty());
  EXPECT_EQ(jobs.ended().at(v1::JOB_PHASE_CANCELLED), 0);
  machine.Do(CancelRequested{kJob, false, "stop"});
  EXPECT_TRUE(machine.Do(DeleteRequested{kJob, false}).answer.ok());
  EXPECT_EQ(jobs.size(), 0u);
  EXPECT_TRUE(jobs.Active().empty());
  EXPECT_TRUE(jobs.EndedSince(0).empty());
}

TEST(Core, JobsWaitInTheirOrder) {
  Machine machine;
  machine.Do(Submitted{kJob, Spec()});
  machine.Do(Submitted{"job-2", Spec()});
  machine.Do(NodeAttached{Hello(false)});
  EXPECT_EQ(machine.job().phase(), v1::JOB_PHASE_PREPARING);
  EXPECT_EQ(machine.state().jobs.at("job-2").record.phase(), v1::JOB_PHASE_QUEUED);
  EXPECT_THAT(machine.state().jobs.at("job-2").record.error(), HasSubstr("needs 2 devices"));
  machine.Do(CancelRequested{kJob, false, ""});
  EXPECT_EQ(machine.state().jobs.at("job-2").record.phase(), v1::JOB_PHASE_PREPARING);
}

}  // namespace
}  // namespace tercio::coordinator
