// What becomes of a job whose ranks, nodes or data fail it.
#include "coordinator/core/testing/test_cluster.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TEST(Quarantine, ANodeThatKeepsFailingWhileAnotherCouldWork) {
  Cluster cluster;
  cluster.Do(Submitted{kJob, SmallSpec(2)});
  cluster.Attach("a");
  cluster.Attach("b");
  for (int i = 1; i <= 3; ++i) {
    ASSERT_THAT(cluster.NodesOfJob(), ::testing::ElementsAre("a"));
    cluster.StartAll();
    cluster.Stepped(i);
    cluster.Break();
  }
  EXPECT_EQ(NodeStateName(cluster.state_, "a"), "quarantined");
  EXPECT_THAT(cluster.state_.nodes.at("a").record.reason(), HasSubstr("3 faults"));
  EXPECT_THAT(cluster.NodesOfJob(), ::testing::ElementsAre("b"));
  cluster.RestartCoordinator();
  cluster.Attach("a");
  cluster.Attach("b");
  EXPECT_EQ(NodeStateName(cluster.state_, "a"), "quarantined");
  cluster.ChangeNode("a", NodeChange::kRelease);
  EXPECT_EQ(NodeStateName(cluster.state_, "a"), "ready");
}

TEST(Quarantine, TheOnlyNodeIsKept) {
  Cluster cluster;
  cluster.Do(Submitted{kJob, SmallSpec(2)});
  cluster.Attach("a");
  for (int i = 1; i <= 5; ++i) {
    cluster.StartAll();
    cluster.Stepped(i);
    cluster.Break();
  }
  EXPECT_EQ(NodeStateName(cluster.state_, "a"), "ready");
  EXPECT_EQ(cluster.job().phase(), v1::JOB_PHASE_PREPARING);
}

// A process in a hanging driver survives SIGKILL, and its agent goes on to be heard of.
TEST(Quarantine, ANodeWhoseProcessesDoNotEvenDie) {
  for (const bool cancelled : {false, true}) {
    Cluster cluster;
    cluster.Do(Submitted{kJob, SmallSpec(4)});
    cluster.Attach("a");
    cluster.Attach("b");
    cluster.StartAll();
    cluster.Attach("c");
    cluster.Exited(0, 0, 9);
    if (cancelled) cluster.Do(CancelRequested{kJob, false, ""});
    cluster.Say("a",
                [&](v1::AgentMessage& m) { *m.mutable_run_stopped()->mutable_run() = RunWith(1); });
    cluster.Wait(cluster.settings_.save_timeout + 2);
    ASSERT_EQ(cluster.job().phase(), v1::JOB_PHASE_STOPPING) << "it is killed first";
    cluster.Wait(cluster.settings_.save_timeout + 2);
    EXPECT_EQ(NodeStateName(cluster.state_, "a"), "ready");
    EXPECT_EQ(NodeStateName(cluster.state_, "b"), "quarantined");
    EXPECT_THAT(cluster.state_.nodes.at("b").record.reason(),
                HasSubstr("do not exit even after SIGKILL"));
    if (cancelled) {
      EXPECT_EQ(cluster.job().phase(), v1::JOB_PHASE_CANCELLED);
      continue;
    }
    cluster.Wait(5);
    EXPECT_EQ(cluster.job().attempt(), 2);
    EXPECT_THAT(cluster.NodesOfJob(), ::testing::ElementsAre("a", "c"));
    // In the end it does: the news is of the past.
    cluster.Say("b",
                [&](v1::AgentMessage& m) { *m.mutable_run_stopped()->mutable_run() = RunWith(1); });
    EXPECT_EQ(cluster.job().phase(), v1::JOB_PHASE_PREPARING);
  }
}

TEST(Faults, ACrashAtTheSameStepThreeTimesIsNotTriedAgain) {
  Cluster cluster;
  cluster.Do(Submitted{kJob, SmallSpec(2)});
  cluster.Attach("a");
  cluster.Attach("b");
  for (int i = 1; i <= 3; ++i) {
    cluster.StartAll();
    cluster.Stepped(5);
    cluster.Exited(1, 0, 11);
    cluster.StopAll();
    cluster.Wait(100);
  }
  EXPECT_EQ(cluster.job().phase(), v1::JOB_PHASE_FAILED);
  EXPECT_THAT(cluster.job().error(), HasSubstr("3 times in a row after step 5"));
  EXPECT_THAT(cluster.kinds_, Not(Contains("node_quarantined")));
}

TEST(Faults, KillsFromOutsideAreNotACrashLoop) {
  Cluster cluster;
  cluster.Do(Submitted{kJob, SmallSpec(2)});
  cluster.Attach("a");
  for (int i = 1; i <= 5; ++i) {
    cluster.StartAll();
    cluster.Stepped(5);
    cluster.Break();
  }
  EXPECT_EQ(cluster.job().phase(), v1::JOB_PHASE_PREPARING);
}

TEST(Faults, OutOfMemoryStopsAtOnce) {
  Cluster cluster;
  cluster.Do(Submitted{kJob, SmallSpec(2)});
  cluster.Attach("a");
  cluster.StartAll();
  cluster.Say("a", [&](v1::AgentMessage& m) {
    *m.mutable_rank_exited()->mutable_run() = RunWith(1);
    m.mutable_rank_exited()->mutable_exit()->set_signal(9);
    m.mutable_rank_exited()->mutable_exit()->set_out_of_memory(true);
  });
  cluster.StopAll();
  EXPECT_EQ(cluster.job().phase(), v1::JOB_PHASE_FAILED);
  EXPECT_THAT(cluster.job().error(), HasSubstr("was killed by signal 9 (out of memory)"));
}

TEST(Faults, RanksThatEndTooEarlyHaveNotSucceeded) {
  Cluster cluster;
  cluster.Do(Submitted{kJob, SmallSpec(2)});
  cluster.Attach("a");
  cluster.StartAll();
  cluster.Stepped(99);
  cluster.Exited(0, 0);
  cluster.Exited(1, 0);
  cluster.StopAll();
  EXPECT_EQ(cluster.job().phase(), v1::JOB_PHASE_BACKING_OFF);
  EXPECT_THAT(cluster.job().error(), HasSubstr("before the last step"));
}

TEST(Faults, NodesWithOtherDataEndTheJobAndAreNamed) {
  Cluster cluster;
  cluster.Do(Submitted{kJob, SmallSpec(4)});
  cluster.Attach("a");
  cluster.Attach("b");
  for (const char* node : {"a", "b"}) {
    cluster.Say(node, [&](v1::AgentMessage& m) {
      *m.mutable_data_prepared()->mutable_run() = RunWith(1);
      m.mutable_data_prepared()->set_vocab_size(20);
      m.mutable_data_prepared()->set_digest(node);
    });
  }
  EXPECT_EQ(cluster.job().phase(), v1::JOB_PHASE_FAILED);
  EXPECT_THAT(cluster.job().error(), HasSubstr("node b has different data"));
}

TEST(Faults, OtherDataThanThatOfTheCheckpointEndsTheJobUnlessItIsAccepted) {
  Cluster cluster;
  cluster.Do(Submitted{kJob, SmallSpec(2)});
  cluster.Attach("a");
  cluster.StartAll();
  cluster.Stepped(1);
  cluster.Break();
  // Nothing was saved: all of it is repeated with the data that is there now.
  cluster.data_ = "other";
  cluster.StartAll(0);
  ASSERT_EQ(cluster.job().phase(), v1::JOB_PHASE_RUNNING);
  cluster.Stepped(1);
  cluster.Committed(1);
  cluster.Break();
  cluster.data_ = "third";
  cluster.StartAll(1);
  EXPECT_EQ(cluster.job().phase(), v1::JOB_PHASE_FAILED);
  EXPECT_THAT(cluster.job().error(), HasSubstr("node a now has digest third, previously other"));
  EXPECT_THAT(cluster.job().error(), HasSubstr("tercio resume job-1 --accept-data-change"));

  cluster.Do(ResumeRequested{kJob, cluster.job().spec()});
  cluster.StartAll(1);
  EXPECT_EQ(cluster.job().phase(), v1::JOB_PHASE_FAILED) << "nobody has accepted it";
  cluster.Do(ResumeRequested{kJob, cluster.job().spec(), true});
  cluster.StartAll(1);
  EXPECT_EQ(cluster.job().phase(), v1::JOB_PHASE_RUNNING);
  // It is the job's data from now on.
  cluster.Break();
  cluster.StartAll(1);
  EXPECT_EQ(cluster.job().phase(), v1::JOB_PHASE_RUNNING);
  cluster.Break();
  cluster.data_ = "other";
  cluster.StartAll(1);
  EXPECT_EQ(cluster.job().phase(), v1::JOB_PHASE_FAILED);
}

TEST(Faults, NothingDependsOnTheClocksOfNodes) {
  const auto run = [](double hours) {
    Cluster cluster;
    cluster.Do(Submitted{kJob, SmallSpec(4)});
    cluster.Attach("a");
    cluster.Attach("b");
    cluster.StartAll();
    for (const char* node : {"a", "b"}) {
      const double off = node[0] == 'a' ? hours : -hours;
      cluster.Say(node, [&](v1::AgentMessage& m) {
        *m.mutable_logs()->mutable_run() = RunWith(1);
        v1::LogLine* line = m.mutable_logs()->add_lines();
        line->set_attempt(1);
        line->mutable_time()->set_seconds(static_cast<int64_t>(1000 + off * 3600));
      });
      cluster.Say(node, [&](v1::AgentMessage& m) {
        *m.mutable_trace()->mutable_run() = RunWith(1);
        m.mutable_trace()->mutable_trace()->add_events()->set_start_seconds(1000 + off * 3600);
      });
    }
    cluster.Stepped(1);
    cluster.Wait(20);
    EXPECT_THAT(cluster.kinds_, Not(Contains("node_lost")));
    return cluster.job().SerializeAsString();
  };
  EXPECT_EQ(run(0), run(7));
}

TEST(Faults, ALongTimeWithoutFaultsGivesTheBudgetBack) {
  Cluster cluster;
  cluster.Do(Submitted{kJob, SmallSpec(2)});
  cluster.Attach("a");
  cluster.StartAll();
  cluster.Stepped(1);
  cluster.Break();
  cluster.StartAll();
  cluster.Stepped(2);
  cluster.Committed(2);
  EXPECT_EQ(cluster.job().restarts_used(), 1);
  cluster.Wait(3600);
  cluster.Stepped(3);
  cluster.Committed(3);
  EXPECT_EQ(cluster.job().restarts_used(), 0);
  EXPECT_EQ(cluster.job().restarts(), 1);
}

// What a node says of a run on it.
v1::AgentMessage Health(double stalled, const std::vector<std::pair<int, double>>& computes = {},
                        int64_t step = 0) {
  v1::AgentMessage message;
  v1::RunHealth* health = message.mutable_heartbeat()->add_health();
  *health->mutable_run() = RunWith(1);
  health->set_stalled_seconds(stalled);
  for (const auto& [rank, seconds] : computes) {
    v1::RankTiming* timing = health->add_timings();
    timing->set_rank(rank);
    timing->set_step(step);
    timing->set_step_seconds(2);
    timing->set_compute_seconds(seconds);
  }
  return message;
}

TEST(Figures, AreThoseOfThePresentAttempt) {
  Cluster cluster;
  cluster.Do(Submitted{kJob, SmallSpec(4)});
  cluster.Attach("a");
  cluster.Attach("b");
  cluster.StartAll();
  v1::AgentMessage message = Health(0);
  for (const int rank : {0, 3, 4, -1}) {
    v1::RankFigures* figures = message.mutable_heartbeat()->mutable_health(0)->add_figures();
    figures->set_rank(rank);
    figures->set_step(12);
  }
  cluster.Do(NodeSaid{"a", message});
  const auto figures = [&] { return cluster.state_.jobs.at(kJob).health->figures; };
  ASSERT_EQ(figures().size(), 2u) << "ranks that there are";
  EXPECT_EQ(figures().at(3).step(), 12);
  message.mutable_heartbeat()->mutable_health(0)->mutable_run()->set_attempt(0);
  message.mutable_heartbeat()->mutable_health(0)->mutable_figures(0)->set_step(1);
  cluster.Do(NodeSaid{"a", message});
  EXPECT_EQ(figures().at(0).step(), 12) << "an older attempt says nothing";
  cluster.Break();
  EXPECT_EQ(cluster.state_.jobs.at(kJob).health, nullptr);
}

TEST(Figures, OfAnExitAreKeptAndTheLastWordsOfTheRankAtFault) {
  Cluster cluster;
  cluster.Do(Submitted{kJob, SmallSpec(4)});
  cluster.Attach("a");
  cluster.Attach("b");
  cluster.StartAll();
  const auto exit = [&](int rank, int signal) {
    return cluster.Say(cluster.placement().NodeOf(rank), [&](v1::AgentMessage& m) {
      *m.mutable_rank_exited()->mutable_run() = RunWith(1);
      v1::ExitRecord* record = m.mutable_rank_exited()->mutable_exit();
      record->set_rank(rank);
      record->set_signal(signal);
      record->add_last_log_lines("the end");
      record->mutable_figures()->set_step(rank + 5);
    });
  };
  const Effects first = exit(2, 11);
  ASSERT_EQ(first.exits.size(), 1u);
  EXPECT_EQ(first.exits[0].second.figures().step(), 7);
  EXPECT_EQ(first.exits[0].second.last_log_lines_size(), 1);
  EXPECT_EQ(cluster.job().fault_rank_plus_one(), 3);
  EXPECT_EQ(cluster.job().fault_attempt(), 1);
  const Effects second = exit(0, 15);
  ASSERT_EQ(second.exits.size(), 1u);
  EXPECT_EQ(second.exits[0].second.figures().step(), 5);
  EXPECT_EQ(second.exits[0].second.last_log_lines_size(), 0) << "it was not its fault";
  EXPECT_EQ(cluster.job().fault_rank_plus_one(), 3);
}

TEST(Hang, IsNamedAndTheNextAttemptStarts) {
  Cluster cluster;
  cluster.Do(Submitted{kJob, SmallSpec(4)});
  cluster.Attach("a");
  cluster.Attach("b");
  cluster.StartAll();
  for (int step = 1; step <= 5; ++step) cluster.Stepped(step, 1);
  for (int i = 0; i <= 32; ++i) {
    for (const char* node : {"a", "b"}) cluster.Do(NodeSaid{node, Health(i)});
    cluster.now_ += 1;
    cluster.last_ = cluster.Do(Tick{});
    if (!cluster.last_.messages.empty()) break;
  }
  for (const char* node : {"a", "b"}) {
    EXPECT_EQ(cluster.Sent(node, [](const auto& m) { return m.has_inspect_run(); }), 1) << node;
  }
  EXPECT_THAT(cluster.kinds_, Contains("no_progress"));
  for (const char* node : {"a", "b"}) {
    v1::AgentMessage answer;
    *answer.mutable_inspected()->mutable_run() = RunWith(1);
    for (int rank = 0; rank < 4; ++rank) {
      if (cluster.placement().NodeOf(rank) != node) continue;
      v1::RankPosition* position = answer.mutable_inspected()->add_ranks();
      position->set_rank(rank);
      position->set_process_state(rank == 3 ? "T" : "S");
      position->set_step(6);
      position->set_phase(v1::TRAINER_PHASE_RUNNING);
      position->set_stack(rank == 3 ? "" : "frame 0\nframe 1");
      if (rank == 3) continue;
      v1::CollectiveIdentity* waiting = position->mutable_waiting();
      waiting->set_group("data");
      waiting->set_operation("all-reduce");
      waiting->set_sequence(44);
      waiting->set_peer(3);
    }
    cluster.Do(NodeSaid{node, answer});
  }
  cluster.last_ = cluster.Do(Tick{});
  EXPECT_EQ(cluster.job().phase(), v1::JOB_PHASE_STOPPING);
  EXPECT_THAT(cluster.job().error(), HasSubstr("hang: rank 3 (node b)"));
  EXPECT_THAT(cluster.job().error(), HasSubstr("state T"));
  // Those that answered have equal stacks.
  ASSERT_EQ(cluster.last_.logs.size(), 3u);
  EXPECT_THAT(cluster.last_.logs[0].second.line(), HasSubstr("in 3 ranks: ranks 0-2"));
  EXPECT_EQ(cluster.last_.logs[1].second.line(), "stack: frame 0");
  EXPECT_EQ(cluster.last_.logs[1].second.node(), "a");
  cluster.StopAll();
  EXPECT_EQ(cluster.job().phase(), v1::JOB_PHASE_BACKING_OFF);
}

TEST(Hang, ANodeThatDoesNotAnswerEndsTheWaitForIt) {
  Cluster cluster;
  cluster.Do(Submitted{kJob, SmallSpec(4)});
  cluster.Attach("a");
  cluster.Attach("b");
  cluster.StartAll();
  for (int step = 1; step <= 5; ++step) cluster.Stepped(step, 1);
  for (int i = 0; i <= 40 && cluster.job().phase() == v1::JOB_PHASE_RUNNING; ++i) {
    for (const char* node : {"a", "b"}) cluster.Do(NodeSaid{node, Health(i)});
    cluster.now_ += 1;
    cluster.Do(Tick{});
  }
  EXPECT_EQ(cluster.job().phase(), v1::JOB_PHASE_STOPPING);
}

// A run whose ranks load their state, of which heartbeats come every five seconds.
class Loading : public ::testing::Test {
 protected:
  void SetUp() override {
    cluster_.Do(Submitted{kJob, SmallSpec(2)});
    cluster_.Attach("a");
    cluster_.Do(CheckpointFound{RunWith(1), 10, "", 0, {}});
    cluster_.Say("a", [&](v1::AgentMessage& m) {
      *m.mutable_data_prepared()->mutable_run() = RunWith(1);
      m.mutable_data_prepared()->set_vocab_size(20);
      m.mutable_data_prepared()->set_digest("d");
    });
    ASSERT_EQ(cluster_.job().phase(), v1::JOB_PHASE_STARTING);
  }
  void Heartbeat(int64_t bytes, double stalled) {
    cluster_.now_ += 5;
    v1::AgentMessage message = Health(stalled);
    v1::RunHealth* health = message.mutable_heartbeat()->mutable_health(0);
    health->set_loaded_bytes(bytes);
    health->set_load_total_bytes(84'000'000'000);
    cluster_.Do(NodeSaid{"a", message});
    for (const v1::JobEvent& event : cluster_.Do(Tick{}).events) {
      texts_.push_back(event.kind() + ": " + event.message());
    }
  }
  Cluster cluster_;
  std::vector<std::string> texts_;
};

TEST_F(Loading, IsNoHangWhileBytesArrive) {
  for (int i = 1; i <= 240; ++i) Heartbeat(i * 1'000'000, 5.0 * i);  // 20 minutes
  EXPECT_THAT(cluster_.kinds_, Not(Contains("no_progress")));
  EXPECT_EQ(cluster_.job().phase(), v1::JOB_PHASE_STARTING);
  const auto& health = *cluster_.state_.jobs.at(kJob).health;
  ASSERT_TRUE(health.LoadingOfAll().has_value());
  EXPECT_EQ(health.LoadingOfAll()->bytes, 240'000'000);
  EXPECT_EQ(health.LoadingOfAll()->total_bytes, 84'000'000'000);
  cluster_.Do(NodeSaid{"a", Health(0)});
  EXPECT_FALSE(health.LoadingOfAll().has_value()) << "all have loaded";
}

TEST_F(Loading, ThatStandsStillIsAHang) {
  for (int i = 1; i <= 59; ++i) Heartbeat(3'100'000'000, 5.0 * (i - 1));
  EXPECT_THAT(cluster_.kinds_, Not(Contains("no_progress")));
  for (int i = 60; i <= 64; ++i) Heartbeat(3'100'000'000, 5.0 * (i - 1));
  for (const char* kind : {"no_progress: ", "hang: "}) {
    EXPECT_THAT(texts_,
                Contains(AllOf(StartsWith(kind),
                               HasSubstr("its ranks are loading their state, 3.100 of 84.000"))));
  }
  EXPECT_EQ(cluster_.job().phase(), v1::JOB_PHASE_STOPPING);
}

TEST(Hang, ProgressEndsTheSuspicion) {
  Cluster cluster;
  cluster.Do(Submitted{kJob, SmallSpec(2)});
  cluster.Attach("a");
  cluster.StartAll();
  for (int step = 1; step <= 5; ++step) cluster.Stepped(step, 1);
  for (int i = 0; i <= 31; ++i) {
    cluster.Do(NodeSaid{"a", Health(i)});
    cluster.now_ += 1;
    cluster.Do(Tick{});
  }
  ASSERT_THAT(cluster.kinds_, Contains("no_progress"));
  cluster.Do(NodeSaid{"a", Health(0)});
  cluster.Do(Tick{});
  EXPECT_THAT(cluster.kinds_, Contains("progress"));
  cluster.Wait(10);
  EXPECT_EQ(cluster.job().phase(), v1::JOB_PHASE_RUNNING);
}

TEST(Straggler, IsNamedAndReplacedWhereThePolicySaysSo) {
  for (const v1::StragglerPolicy policy :
       {v1::STRAGGLER_POLICY_REPORT, v1::STRAGGLER_POLICY_EXCLUDE}) {
    Cluster cluster;
    v1::JobSpec spec = SmallSpec(4);
    spec.mutable_fault_tolerance()->set_stragglers(policy);
    cluster.Do(Submitted{kJob, spec});
    cluster.Attach("a");
    cluster.Attach("b");
    cluster.StartAll();
    cluster.Attach("c");
    cluster.Stepped(1, 1);
    for (int64_t i = 1; i <= 6; ++i) {
      cluster.Do(NodeSaid{"a", Health(0, {{0, 1.0}, {1, 1.01}}, i)});
      cluster.Do(NodeSaid{"b", Health(0, {{2, 2.0}, {3, 1.02}}, i)});
    }
    EXPECT_THAT(cluster.kinds_, Contains("straggler"));
    if (policy == v1::STRAGGLER_POLICY_REPORT) {
      EXPECT_EQ(cluster.job().phase(), v1::JOB_PHASE_RUNNING);
      continue;
    }
    ASSERT_EQ(cluster.job().phase(), v1::JOB_PHASE_STOPPING);
    cluster.Committed(1);
    cluster.StopAll();
    EXPECT_THAT(cluster.NodesOfJob(), ::testing::ElementsAre("a", "c"));
    EXPECT_EQ(cluster.job().restarts(), 0);
  }
}

}  // namespace
}  // namespace tercio::coordinator
