// Attempts that start from copies of snapshots in the memory of nodes.
#include <map>
#include <set>
#include <string>
#include <vector>

#include "coordinator/core/core.h"
#include "coordinator/core/ledger.h"
#include "coordinator/core/testing/test_job.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "plan/rank_layout.h"

namespace tercio::coordinator {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

v1::JobSpec Spec() {
  v1::JobSpec spec = SmallSpec(2);
  spec.mutable_checkpoint()->set_peer_copies(1);
  return spec;
}

// Nodes a and b with one device each run a job of two ranks; others are spares.
class MemoryTest : public ::testing::Test {
 protected:
  MemoryTest() {
    Do(Submitted{kJob, Spec()});
    Attach("a");
    Attach("b");
    Start(0);
  }

  template <typename Body>
  Effects Do(Body body) {
    now_ += 0.01;
    Effects effects = Step(state_, {now_, "token", std::move(body)}, settings_);
    for (const v1::JobEvent& event : effects.events) {
      kinds_.push_back(event.kind());
      messages_.push_back(event.message());
    }
    for (const SendToNode& send : effects.messages) {
      if (send.message.has_start_run()) starts_[send.node] = send.message.start_run();
      if (send.message.has_drop_snapshots()) dropped_.push_back(send.node);
    }
    return effects;
  }
  void Attach(const std::string& node, int running = 0) {
    v1::AgentHello hello;
    hello.set_node(node);
    hello.set_devices(1);
    hello.set_cores(1);
    hello.set_spool_id("spool " + node);
    hello.set_snapshot_address("address of " + node);
    if (running > 0) *hello.add_running() = RunWith(running);
    Do(NodeAttached{hello});
  }
  Effects Says(const std::string& node, const std::function<void(v1::AgentMessage&)>& fill) {
    v1::AgentMessage message;
    fill(message);
    return Do(NodeSaid{node, message});
  }
  Effects Holds(const std::string& node, int rank, int attempt, int64_t step,
                const std::vector<int64_t>& steps = {}) {
    return Says(node, [&](v1::AgentMessage& m) {
      v1::SnapshotHeld* held = m.mutable_snapshots_held()->add_snapshots();
      *held->mutable_run() = RunWith(attempt);
      held->set_rank(rank);
      held->set_step(step);
      for (const int64_t number : steps) {
        held->add_steps()->set_step(number);
        held->mutable_steps()->rbegin()->set_attempt(attempt);
      }
    });
  }
  // Each node its own rank and that of the other.
  void AllHold(int attempt, int64_t step) {
    for (const char* node : {"a", "b"}) {
      for (int rank = 0; rank < 2; ++rank) Holds(node, rank, attempt, step);
    }
  }
  std::set<std::string> NodesOfJob() {
    std::set<std::string> nodes;
    for (const auto& [name, node] : placement().nodes()) nodes.insert(name);
    return nodes;
  }
  // The attempt, from preparing to where ranks are started; a checkpoint of `committed` is there.
  void Start(int64_t committed) {
    Prepare(committed);
    ASSERT_EQ(job().phase(), v1::JOB_PHASE_STARTING);
  }
  void Prepare(int64_t committed) {
    starts_.clear();
    ASSERT_EQ(job().phase(), v1::JOB_PHASE_PREPARING);
    Do(CheckpointFound{RunWith(job().attempt()), committed, "path", 1, {}});
    for (const std::string& node : NodesOfJob()) {
      Says(node, [&](v1::AgentMessage& m) {
        *m.mutable_data_prepared()->mutable_run() = RunWith(job().attempt());
        m.mutable_data_prepared()->set_vocab_size(20);
        m.mutable_data_prepared()->set_digest(data_);
      });
    }
  }
  void Stepped(int64_t step) {
    now_ += 1;
    Says(placement().NodeOf(0), [&](v1::AgentMessage& m) {
      *m.mutable_step_report()->mutable_run() = RunWith(job().attempt());
      m.mutable_step_report()->mutable_record()->set_step(step);
      m.mutable_step_report()->mutable_record()->set_attempt(job().attempt());
      m.mutable_step_report()->mutable_record()->set_step_seconds(1);
    });
  }
  void Beat() {
    for (const auto& [name, node] : std::map(state_.nodes)) {
      if (node.connected) Says(name, [](v1::AgentMessage& m) { m.mutable_heartbeat(); });
    }
  }
  // A rank is killed; the next attempt prepares afterwards.
  void Break(const std::string& node = "a") {
    const int attempt = job().attempt();
    Says(node, [&](v1::AgentMessage& m) {
      *m.mutable_rank_exited()->mutable_run() = RunWith(attempt);
      m.mutable_rank_exited()->mutable_exit()->set_signal(9);
    });
    for (const std::string& each : NodesOfJob()) {
      Says(each, [&](v1::AgentMessage& m) {
        *m.mutable_run_stopped()->mutable_run() = RunWith(attempt);
      });
    }
    ASSERT_EQ(job().phase(), v1::JOB_PHASE_BACKING_OFF);
    now_ += 100;
    Beat();
    Do(Tick{});
  }
  // A whole node, with what its memory holds.
  void Lose(const std::string& node) {
    const int attempt = job().attempt();
    Do(NodeDetached{node});
    for (int i = 0; i < 17; ++i) {
      now_ += 1;
      Beat();
      Do(Tick{});
    }
    for (const std::string& other : NodesOfJob()) {
      if (other == node) continue;
      Says(other, [&](v1::AgentMessage& m) {
        *m.mutable_run_stopped()->mutable_run() = RunWith(attempt);
      });
    }
    now_ += 100;
    Beat();
    Do(Tick{});
  }
  int64_t LostSeconds() {
    return LedgerTotals(job().ledger(), now_)[v1::TIME_KIND_LOST_WORK] / 1'000'000;
  }

  const v1::JobRecord& job() { return state_.jobs.at(kJob).record; }
  const Placement& placement() { return *state_.jobs.at(kJob).placement; }
  State state_;
  Settings settings_ = PlanningSettings();
  double now_ = 1000;
  std::string data_ = "data";
  std::vector<std::string> kinds_;
  std::vector<std::string> messages_;
  std::map<std::string, v1::StartRun> starts_;  // the last order of each node
  std::vector<std::string> dropped_;
};

TEST_F(MemoryTest, NodesKeepCopiesForTheNextInTheRing) {
  EXPECT_THAT(starts_.at("a").snapshot_peers(), ElementsAre("address of b"));
  EXPECT_THAT(starts_.at("b").snapshot_peers(), ElementsAre("address of a"));
  EXPECT_EQ(starts_.at("a").resume_attempt(), 0);
  EXPECT_THAT(starts_.at("a").snapshot_sources(), IsEmpty());
}

TEST_F(MemoryTest, GoesOnFromTheSnapshotOfTheLastAttempt) {
  for (int step = 1; step <= 8; ++step) Stepped(step);
  AllHold(1, 6);
  Break();
  Start(4);
  EXPECT_EQ(job().resume_step(), 6);
  EXPECT_EQ(job().resume_attempt(), 1);
  EXPECT_EQ(job().resume_steps().at(2), 6);
  EXPECT_EQ(starts_.at("a").resume_step(), 6);
  EXPECT_EQ(starts_.at("a").resume_attempt(), 1);
  // Each from its own node, which needs no address.
  EXPECT_EQ(starts_.at("a").snapshot_sources().at(0), "");
  EXPECT_EQ(starts_.at("b").snapshot_sources().at(1), "");
  EXPECT_EQ(starts_.at("b").snapshot_sources().size(), 1u);
  EXPECT_THAT(kinds_, Contains("resumed_from_memory"));
  EXPECT_THAT(messages_, Contains(HasSubstr("step 6 of attempt 1, from the memory of a, b")));
  EXPECT_EQ(LostSeconds(), 2);
}

TEST_F(MemoryTest, ALostNodeIsReplacedFromItsPeer) {
  Attach("c");
  Stepped(8);
  AllHold(1, 6);
  Lose("b");
  ASSERT_THAT(NodesOfJob(), ElementsAre("a", "c"));
  Start(4);
  EXPECT_EQ(job().resume_step(), 6);
  EXPECT_EQ(starts_.at("a").snapshot_sources().at(0), "");
  EXPECT_EQ(starts_.at("c").snapshot_sources().at(1), "address of a");
}

TEST_F(MemoryTest, ARankWithoutAHolderSendsAllToTheCheckpoint) {
  Attach("c");
  Stepped(8);
  Holds("a", 0, 1, 6);
  Holds("b", 1, 1, 6);
  Holds("b", 0, 1, 6);
  Lose("b");
  Start(4);
  EXPECT_EQ(job().resume_step(), 4);
  EXPECT_EQ(job().resume_attempt(), 0);
  EXPECT_THAT(kinds_, Not(Contains("resumed_from_memory")));
}

TEST_F(MemoryTest, ANewerCheckpointIsBetter) {
  Stepped(8);
  AllHold(1, 6);
  Break();
  Start(7);
  EXPECT_EQ(job().resume_step(), 7);
  EXPECT_EQ(job().resume_attempt(), 0);
}

TEST_F(MemoryTest, MemoryIsFasterThanTheCheckpointOfTheSameStep) {
  Stepped(8);
  AllHold(1, 6);
  Break();
  Start(6);
  EXPECT_EQ(job().resume_attempt(), 1);
}

// An attempt that did not get to its first step may not be able to load what it is told to load.
TEST_F(MemoryTest, ASnapshotThatCarriedNoAttemptIsNotTriedAgain) {
  Stepped(8);
  AllHold(1, 6);
  Break();
  Start(4);
  ASSERT_EQ(job().resume_step(), 6);
  Break();
  Start(4);
  EXPECT_EQ(job().attempt(), 3);
  EXPECT_EQ(job().resume_step(), 4);
  EXPECT_EQ(job().resume_attempt(), 0);
}

TEST_F(MemoryTest, ASnapshotThatCarriedAnAttemptMayBeUsedAgain) {
  Stepped(8);
  AllHold(1, 6);
  Break();
  Start(4);
  Stepped(7);
  Break();
  Start(4);
  EXPECT_EQ(job().resume_step(), 6);
  EXPECT_EQ(job().resume_attempt(), 1);
}

// After an attempt from an older checkpoint its steps are the history's, not those of the snapshot.
TEST_F(MemoryTest, WhatALaterAttemptHasLeftBehindDoesNotCount) {
  Stepped(8);
  Break();
  Start(4);
  Stepped(5);
  AllHold(1, 6);  // heard of late
  Break();
  Start(4);
  EXPECT_EQ(job().resume_step(), 4);
}

TEST_F(MemoryTest, AnotherLayoutLoadsTheCheckpoint) {
  Stepped(8);
  AllHold(1, 6);
  Break();
  v1::JobSpec& spec = *state_.jobs.at(kJob).record.mutable_spec();
  spec.mutable_parallelism()->set_tensor(2);
  spec.mutable_parallelism()->set_data(1);
  Start(4);
  EXPECT_EQ(job().resume_step(), 4);
}

TEST_F(MemoryTest, OtherDataEndsTheJob) {
  Stepped(8);
  AllHold(1, 6);
  Break();
  data_ = "other";
  Prepare(0);
  EXPECT_EQ(job().phase(), v1::JOB_PHASE_FAILED);
  EXPECT_THAT(job().error(), HasSubstr("after step 6"));
  EXPECT_THAT(starts_, IsEmpty());
}

// The node that reported the steps may be gone with what it had to report.
TEST_F(MemoryTest, StepsOfASnapshotAreKeptBeforeItCounts) {
  const Effects effects = Holds("b", 0, 1, 3, {1, 2, 3});
  ASSERT_EQ(effects.steps.size(), 3u);
  EXPECT_EQ(effects.steps[2].first, kJob);
  EXPECT_EQ(effects.steps[2].second.step(), 3);
}

TEST_F(MemoryTest, WhatANodeDoesNotSayAgainIsGone) {
  Stepped(8);
  AllHold(1, 6);
  Attach("b", /*running=*/1);  // another agent
  Holds("b", 0, 1, 6);
  Break();
  Start(4);
  EXPECT_EQ(job().resume_step(), 6) << "a has both";
  EXPECT_EQ(starts_.at("b").snapshot_sources().at(1), "address of a");
  Says("a", [](v1::AgentMessage& m) { m.mutable_snapshots_held()->set_all(true); });
  Stepped(7);
  Break();
  Start(4);
  EXPECT_EQ(job().resume_step(), 4);
}

TEST_F(MemoryTest, CopiesGoWithTheJob) {
  AllHold(1, 6);
  Do(CancelRequested{kJob, false, ""});
  for (const char* node : {"a", "b"}) {
    Says(node, [&](v1::AgentMessage& m) { *m.mutable_run_stopped()->mutable_run() = RunWith(1); });
  }
  ASSERT_EQ(job().phase(), v1::JOB_PHASE_CANCELLED);
  EXPECT_THAT(dropped_, ElementsAre("a", "b"));
  // Heard of too late.
  Holds("b", 1, 1, 6);
  EXPECT_THAT(dropped_, ElementsAre("a", "b", "b"));
}

TEST_F(MemoryTest, WorkIsLostWithTheJobWhenThereIsNoNextAttempt) {
  state_.jobs.at(kJob).record.mutable_spec()->mutable_fault_tolerance()->set_max_restarts(0);
  for (int step = 1; step <= 5; ++step) Stepped(step);
  AllHold(1, 4);
  Says("a", [&](v1::AgentMessage& m) {
    *m.mutable_rank_exited()->mutable_run() = RunWith(1);
    m.mutable_rank_exited()->mutable_exit()->set_signal(9);
  });
  EXPECT_EQ(LostSeconds(), 0);
  for (const char* node : {"a", "b"}) {
    Says(node, [&](v1::AgentMessage& m) { *m.mutable_run_stopped()->mutable_run() = RunWith(1); });
  }
  ASSERT_EQ(job().phase(), v1::JOB_PHASE_FAILED);
  EXPECT_EQ(LostSeconds(), 5);
}

// The order names holders that only memory knows.
TEST_F(MemoryTest, AnOrderThatCannotBeGivenAgainEndsTheAttempt) {
  Stepped(8);
  AllHold(1, 6);
  Break();
  Start(4);
  ASSERT_EQ(job().resume_attempt(), 1);
  starts_.clear();
  Attach("b");
  ASSERT_TRUE(starts_.contains("b"));
  EXPECT_EQ(starts_.at("b").snapshot_sources().at(1), "");
  Stored stored;
  stored.jobs.push_back(job());
  stored.plans[kJob] = *state_.jobs.at(kJob).plan;
  stored.placements[kJob] = placement().slots();
  for (const auto& [name, node] : state_.nodes) stored.nodes.push_back(node.record);
  state_ = Restore(std::move(stored), now_);
  Attach("a", 2);
  EXPECT_EQ(job().phase(), v1::JOB_PHASE_STARTING);
  Attach("b");
  EXPECT_EQ(job().phase(), v1::JOB_PHASE_STOPPING);
}

TEST_F(MemoryTest, NonsenseIsNotKept) {
  Holds("a", -1, 1, 6);
  Holds("a", 2, 1, 6);
  Holds("a", 0, 9, 6);
  Holds("a", 0, 1, 0);
  EXPECT_FALSE(state_.nodes.at("a").snapshots.HasAny(kJob));
}

}  // namespace
}  // namespace tercio::coordinator
