// Several nodes: who gets devices, who loses them, and what a restarted coordinator makes of it.
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "coordinator/core/core.h"
#include "coordinator/core/ledger.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "plan/rank_layout.h"

namespace tercio::coordinator {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kJob[] = "job-1";

v1::JobSpec Spec(int data) {
  v1::JobSpec spec;
  spec.set_name("test");
  v1::ModelSpec* model = spec.mutable_model();
  model->set_layers(2);
  model->set_hidden(16);
  model->set_heads(2);
  model->set_ffn_hidden(64);
  model->set_context(8);
  spec.mutable_training()->set_steps(100);
  spec.mutable_training()->set_global_batch(8);
  spec.mutable_parallelism()->set_tensor(1);
  spec.mutable_parallelism()->set_pipeline(1);
  spec.mutable_parallelism()->set_data(data);
  spec.mutable_resources()->set_ranks(data);
  spec.mutable_checkpoint()->set_keep_last(2);
  spec.mutable_fault_tolerance()->set_max_restarts(10);
  return spec;
}

// Nodes of two devices each, which do what they are told at once.
class Cluster {
 public:
  Cluster() {
    settings_.node_lease = 15;
    settings_.make_plan = [](const v1::JobSpec& spec, const std::vector<plan::DeviceSlot>& slots,
                             const RankShare& share) -> absl::StatusOr<v1::Plan> {
      const absl::StatusOr<v1::Layout> layout = plan::LayoutOfJob(spec);
      if (!layout.ok()) return layout.status();
      return plan::BuildPlan(spec, *layout, slots, share.threads);
    };
    settings_.smaller_layout = [](const v1::JobSpec& spec, int least, int most, const RankShare&,
                                  int* ranks) -> absl::StatusOr<v1::ParallelismSpec> {
      for (*ranks = most; *ranks >= least; --*ranks) {
        if (spec.training().global_batch() % *ranks != 0) continue;
        v1::ParallelismSpec parallelism = spec.parallelism();
        parallelism.set_data(*ranks);
        return parallelism;
      }
      return absl::NotFoundError("none");
    };
  }

  template <typename Body>
  Effects Do(Body body) {
    now_ += 0.01;
    Effects effects = Step(state_, {now_, "token", std::move(body)}, settings_);
    for (const v1::JobEvent& event : effects.events) kinds_.push_back(event.kind());
    for (const auto& [node, sequence] : effects.acknowledged) acknowledged_[node] = sequence;
    return effects;
  }

  void Attach(const std::string& node, const std::vector<int>& attempts = {},
              const std::string& spool = "s") {
    v1::AgentHello hello;
    hello.set_node(node);
    hello.set_devices(2);
    hello.set_cores(2);
    hello.set_spool_id(spool + node);
    for (const int attempt : attempts) *hello.add_running() = RunWith(attempt);
    last_ = Do(NodeAttached{hello});
  }
  template <typename Fill>
  Effects Say(const std::string& node, const Fill& fill) {
    v1::AgentMessage message;
    message.set_sequence(++sequences_[node]);
    fill(message);
    return Do(NodeSaid{node, message});
  }
  static v1::RunId RunWith(int attempt) {
    v1::RunId run;
    run.set_job_id(kJob);
    run.set_attempt(attempt);
    return run;
  }

  std::set<std::string> NodesOfJob() {
    std::set<std::string> nodes;
    for (const v1::RankSlot& slot : job().slots()) nodes.insert(slot.node());
    return nodes;
  }
  // From preparing to running, unless the data is refused.
  void StartAll(int64_t from = 0) {
    const int attempt = job().attempt();
    Do(CheckpointFound{RunWith(attempt), from, "", 0, {}});
    for (const std::string& node : NodesOfJob()) {
      Say(node, [&](v1::AgentMessage& m) {
        *m.mutable_data_prepared()->mutable_run() = RunWith(attempt);
        m.mutable_data_prepared()->set_vocab_size(20);
        m.mutable_data_prepared()->set_digest(data_);
      });
    }
    if (IsTerminal(job().phase())) return;
    for (int rank = 0; rank < job().slots_size(); ++rank) {
      Say(job().slots(rank).node(), [&](v1::AgentMessage& m) {
        *m.mutable_rank_phase()->mutable_run() = RunWith(attempt);
        m.mutable_rank_phase()->set_rank(rank);
        m.mutable_rank_phase()->set_phase(v1::TRAINER_PHASE_RUNNING);
      });
    }
    ASSERT_EQ(job().phase(), v1::JOB_PHASE_RUNNING) << job().error();
  }
  void Stepped(int64_t step, double seconds = 0.001, double stall = 0) {
    Say(job().slots(0).node(), [&](v1::AgentMessage& m) {
      *m.mutable_step_report()->mutable_run() = RunWith(job().attempt());
      m.mutable_step_report()->set_checkpoint_seconds(stall);
      m.mutable_step_report()->mutable_record()->set_step(step);
      m.mutable_step_report()->mutable_record()->set_step_seconds(seconds);
      m.mutable_step_report()->mutable_record()->set_attempt(job().attempt());
    });
  }
  void Exited(int rank, int code, int signal = 0) {
    Say(job().slots(rank).node(), [&](v1::AgentMessage& m) {
      *m.mutable_rank_exited()->mutable_run() = RunWith(job().attempt());
      v1::ExitRecord* exit = m.mutable_rank_exited()->mutable_exit();
      exit->set_rank(rank);
      exit->set_exit_code(code);
      exit->set_signal(signal);
    });
  }
  void StopAll() {
    const int attempt = job().attempt();
    for (const std::string& node : NodesOfJob()) {
      Say(node,
          [&](v1::AgentMessage& m) { *m.mutable_run_stopped()->mutable_run() = RunWith(attempt); });
    }
  }
  void Committed(int64_t step) {
    Do(CheckpointCommitted{RunWith(job().attempt()), step, "path", 1});
  }
  // A rank is killed; the job is preparing its next attempt afterwards.
  void Break(int rank = 0) {
    Exited(rank, 0, 9);
    StopAll();
    ASSERT_EQ(job().phase(), v1::JOB_PHASE_BACKING_OFF);
    now_ += 100;
    Beat();
    Do(Tick{});
  }
  // All nodes that are connected are heard of.
  void Beat() {
    for (auto& [name, node] : state_.nodes) {
      if (node.connected) Do(NodeSaid{name, v1::AgentMessage()});
    }
  }
  void Wait(double seconds) {
    for (; seconds > 0; seconds -= 1) {
      now_ += std::min(1.0, seconds);
      Beat();
      Do(Tick{});
    }
  }
  void RestartCoordinator() {
    Stored stored;
    for (const auto& [id, job] : state_.jobs) {
      stored.jobs.push_back(job.record);
      if (job.plan != nullptr) stored.plans[id] = *job.plan;
    }
    for (const auto& [name, node] : state_.nodes) stored.nodes.push_back(node.record);
    state_ = Restore(std::move(stored), now_);
  }
  void ChangeNode(const std::string& node, NodeChange change) {
    last_ = Do(NodeChangeRequested{node, change});
  }

  template <typename Has>
  int Sent(const std::string& node, const Has& has) {
    int count = 0;
    for (const SendToNode& send : last_.messages) count += send.node == node && has(send.message);
    return count;
  }

  const v1::JobRecord& job() { return state_.jobs.at(kJob).record; }
  State state_;
  Settings settings_;
  Effects last_;
  double now_ = 1000;
  std::string data_ = "digest";  // of what the nodes have
  std::vector<std::string> kinds_;
  std::map<std::string, uint64_t> sequences_;
  std::map<std::string, uint64_t> acknowledged_;
};

TEST(Spool, AReportThatIsInTheStoreChangesNothingASecondTime) {
  Cluster cluster;
  cluster.Do(Submitted{kJob, Spec(2)});
  cluster.Attach("a");
  cluster.StartAll();
  v1::AgentMessage log;
  log.set_sequence(50);
  *log.mutable_logs()->mutable_run() = Cluster::RunWith(1);
  log.mutable_logs()->add_lines()->set_line("once");
  EXPECT_EQ(cluster.Do(NodeSaid{"a", log}).logs.size(), 1u);
  EXPECT_EQ(cluster.acknowledged_["a"], 50u);
  EXPECT_EQ(cluster.Do(NodeSaid{"a", log}).logs.size(), 0u);
  // Also after both have restarted.
  cluster.RestartCoordinator();
  cluster.Attach("a", {1});
  EXPECT_EQ(cluster.acknowledged_["a"], 50u);
  EXPECT_EQ(cluster.Do(NodeSaid{"a", log}).logs.size(), 0u);
  log.set_sequence(51);
  EXPECT_EQ(cluster.Do(NodeSaid{"a", log}).logs.size(), 1u);
  // Another spool counts anew.
  cluster.Attach("a", {1}, "other");
  log.set_sequence(1);
  EXPECT_EQ(cluster.Do(NodeSaid{"a", log}).logs.size(), 1u);
}

TEST(Restart, ACoordinatorThatComesBackGoesOnWithTheAttempt) {
  Cluster cluster;
  cluster.Do(Submitted{kJob, Spec(4)});
  cluster.Attach("a");
  cluster.Attach("b");
  cluster.StartAll();
  cluster.Stepped(5);
  cluster.RestartCoordinator();
  cluster.Attach("a", {1});
  cluster.Attach("b", {1});
  cluster.Stepped(6);
  EXPECT_EQ(cluster.job().phase(), v1::JOB_PHASE_RUNNING);
  EXPECT_EQ(cluster.job().step(), 6);
  EXPECT_EQ(cluster.job().restarts(), 0);
  EXPECT_EQ(cluster.job().attempt(), 1);
}

// What a node has said in the phase of starting is acknowledged and not said again.
TEST(Restart, AStartGoesOnWhereItWas) {
  Cluster cluster;
  cluster.Do(Submitted{kJob, Spec(2)});
  cluster.Attach("a");
  cluster.Do(CheckpointFound{Cluster::RunWith(1), 0, "", 0, {}});
  cluster.Say("a", [&](v1::AgentMessage& m) {
    *m.mutable_data_prepared()->mutable_run() = Cluster::RunWith(1);
    m.mutable_data_prepared()->set_vocab_size(20);
  });
  const auto runs = [&](int rank) {
    cluster.Say("a", [&](v1::AgentMessage& m) {
      *m.mutable_rank_phase()->mutable_run() = Cluster::RunWith(1);
      m.mutable_rank_phase()->set_rank(rank);
      m.mutable_rank_phase()->set_phase(v1::TRAINER_PHASE_RUNNING);
    });
  };
  runs(0);
  cluster.RestartCoordinator();
  cluster.Attach("a", {1});
  runs(1);
  EXPECT_EQ(cluster.job().phase(), v1::JOB_PHASE_RUNNING);
}

TEST(Restart, AnOrderThatNeverArrivedIsGivenAgain) {
  Cluster cluster;
  cluster.Do(Submitted{kJob, Spec(2)});
  cluster.Attach("a");
  cluster.Do(CheckpointFound{Cluster::RunWith(1), 0, "", 0, {}});
  cluster.Say("a", [&](v1::AgentMessage& m) {
    *m.mutable_data_prepared()->mutable_run() = Cluster::RunWith(1);
    m.mutable_data_prepared()->set_vocab_size(20);
  });
  ASSERT_EQ(cluster.job().phase(), v1::JOB_PHASE_STARTING);
  const auto is_start = [](const v1::CoordinatorMessage& m) { return m.has_start_run(); };
  cluster.Attach("a");
  EXPECT_EQ(cluster.Sent("a", is_start), 1);
  EXPECT_EQ(cluster.job().attempt(), 1);
  // A node that has forgotten may have run it.
  cluster.Attach("a", {}, "wiped");
  EXPECT_EQ(cluster.Sent("a", is_start), 0);
  EXPECT_EQ(cluster.job().phase(), v1::JOB_PHASE_STOPPING);
}

TEST(Drain, JobsSaveAndGoElsewhereAtNoCost) {
  Cluster cluster;
  cluster.Do(Submitted{kJob, Spec(2)});
  cluster.Attach("a");
  cluster.StartAll();
  cluster.Stepped(7);
  cluster.Attach("b");
  cluster.ChangeNode("a", NodeChange::kDrain);
  EXPECT_EQ(cluster.Sent("a",
                         [](const v1::CoordinatorMessage& m) {
                           return m.has_save_checkpoint() && m.save_checkpoint().then_stop();
                         }),
            1);
  EXPECT_EQ(NodeStateName(cluster.state_, "a"), "draining");
  cluster.Committed(7);
  cluster.Exited(0, 4);
  cluster.Exited(1, 4);
  cluster.StopAll();
  EXPECT_EQ(cluster.job().attempt(), 2);
  EXPECT_THAT(cluster.NodesOfJob(), ::testing::ElementsAre("b"));
  EXPECT_EQ(cluster.job().restarts(), 0);
  EXPECT_EQ(NodeStateName(cluster.state_, "a"), "drained");
  EXPECT_EQ(FreeSlots(cluster.state_, "a"), 0);
  const auto totals = LedgerTotals(cluster.job().ledger(), cluster.now_);
  EXPECT_EQ(totals[v1::TIME_KIND_LOST_WORK], 0);
  // It stays drained over restarts of both, until it is undrained.
  cluster.RestartCoordinator();
  cluster.Attach("a");
  EXPECT_EQ(NodeStateName(cluster.state_, "a"), "drained");
  cluster.ChangeNode("a", NodeChange::kUndrain);
  EXPECT_EQ(NodeStateName(cluster.state_, "a"), "ready");
  EXPECT_EQ(FreeSlots(cluster.state_, "a"), 2);
}

TEST(Drain, AnUnknownNodeIsSaid) {
  Cluster cluster;
  cluster.ChangeNode("x", NodeChange::kDrain);
  EXPECT_EQ(cluster.last_.answer.code(), absl::StatusCode::kNotFound);
}

TEST(Drain, ARankThatDiesWhileItSavesEndsTheSaving) {
  Cluster cluster;
  cluster.Do(Submitted{kJob, Spec(2)});
  cluster.Attach("a");
  cluster.StartAll();
  cluster.Stepped(7);
  cluster.ChangeNode("a", NodeChange::kDrain);
  const Effects effects = cluster.Say("a", [&](v1::AgentMessage& m) {
    *m.mutable_rank_exited()->mutable_run() = Cluster::RunWith(1);
    m.mutable_rank_exited()->mutable_exit()->set_signal(9);
  });
  ASSERT_EQ(effects.messages.size(), 1u);
  EXPECT_TRUE(effects.messages[0].message.has_stop_run());
  cluster.StopAll();
  EXPECT_EQ(cluster.job().phase(), v1::JOB_PHASE_QUEUED);
  EXPECT_THAT(cluster.job().error(), HasSubstr("node a is drained"));
}

TEST(Drain, AnAgentThatEndsIsLeft) {
  Cluster cluster;
  cluster.Do(Submitted{kJob, Spec(2)});
  cluster.Attach("a");
  cluster.StartAll();
  v1::AgentMessage leaving;
  leaving.mutable_leaving()->set_grace_seconds(20);
  const Effects effects = cluster.Do(NodeSaid{"a", leaving});
  ASSERT_EQ(effects.messages.size(), 1u);
  EXPECT_TRUE(effects.messages[0].message.has_save_checkpoint());
  EXPECT_EQ(FreeSlots(cluster.state_, "a"), 0);
  cluster.StopAll();
  EXPECT_EQ(cluster.job().phase(), v1::JOB_PHASE_QUEUED);
  cluster.Attach("a");  // it has come back
  EXPECT_EQ(cluster.job().phase(), v1::JOB_PHASE_PREPARING);
  EXPECT_EQ(cluster.job().restarts(), 0);
}

TEST(Elastic, FewerRanksWhenNoMoreComeBackAndAllWhenTheyDo) {
  Cluster cluster;
  v1::JobSpec spec = Spec(4);
  spec.mutable_fault_tolerance()->set_elastic_min_ranks(2);
  spec.mutable_fault_tolerance()->set_elastic_wait_seconds(60);
  cluster.Do(Submitted{kJob, spec});
  cluster.Attach("a");
  cluster.Attach("b");
  cluster.StartAll();
  cluster.Stepped(7);
  cluster.Committed(7);
  cluster.state_.nodes.at("b").connected = false;
  cluster.Wait(16);  // the lease of b
  ASSERT_EQ(cluster.job().phase(), v1::JOB_PHASE_STOPPING) << "a has still to stop";
  cluster.Say("a", [&](v1::AgentMessage& m) {
    *m.mutable_run_stopped()->mutable_run() = Cluster::RunWith(1);
  });
  cluster.Wait(30);
  ASSERT_EQ(cluster.job().phase(), v1::JOB_PHASE_QUEUED);
  EXPECT_THAT(cluster.job().error(), HasSubstr("needs 4 devices"));
  cluster.Wait(40);
  ASSERT_EQ(cluster.job().phase(), v1::JOB_PHASE_PREPARING);
  EXPECT_EQ(cluster.job().slots_size(), 2);
  EXPECT_EQ(PresentSpec(cluster.job()).parallelism().data(), 2);
  EXPECT_EQ(cluster.job().spec().parallelism().data(), 4);
  EXPECT_THAT(cluster.kinds_, Contains("shrunk"));
  cluster.StartAll(7);
  cluster.Stepped(8);
  cluster.Wait(20);
  EXPECT_GT(LedgerTotals(cluster.job().ledger(), cluster.now_)[v1::TIME_KIND_DEGRADED], 19'000'000);
  // A further fault need not wait for what is known to be missing.
  cluster.Break();
  ASSERT_EQ(cluster.job().phase(), v1::JOB_PHASE_PREPARING);
  EXPECT_EQ(cluster.job().slots_size(), 2);
  cluster.StartAll(7);
  cluster.Stepped(9);
  // The node comes back: when it has stayed for a while the job moves to all ranks.
  cluster.Attach("b");
  cluster.Wait(9);
  EXPECT_EQ(cluster.job().phase(), v1::JOB_PHASE_RUNNING);
  cluster.Wait(3);
  ASSERT_EQ(cluster.job().phase(), v1::JOB_PHASE_STOPPING);
  cluster.Committed(9);
  const int restarts = cluster.job().restarts();
  cluster.StopAll();
  EXPECT_EQ(cluster.job().slots_size(), 4);
  EXPECT_EQ(PresentSpec(cluster.job()).parallelism().data(), 4);
  EXPECT_EQ(cluster.job().restarts(), restarts);
  EXPECT_THAT(cluster.kinds_, Contains("grown"));
}

TEST(Elastic, WithoutTheKeyAJobWaits) {
  Cluster cluster;
  cluster.Do(Submitted{kJob, Spec(4)});
  cluster.Attach("a");
  cluster.Attach("b");
  cluster.StartAll();
  cluster.state_.nodes.at("b").connected = false;
  cluster.Wait(16);
  cluster.Say("a", [&](v1::AgentMessage& m) {
    *m.mutable_run_stopped()->mutable_run() = Cluster::RunWith(1);
  });
  cluster.Wait(1000);
  EXPECT_EQ(cluster.job().phase(), v1::JOB_PHASE_QUEUED);
}

TEST(Quarantine, ANodeThatKeepsFailingWhileAnotherCouldWork) {
  Cluster cluster;
  cluster.Do(Submitted{kJob, Spec(2)});
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
  cluster.Do(Submitted{kJob, Spec(2)});
  cluster.Attach("a");
  for (int i = 1; i <= 5; ++i) {
    cluster.StartAll();
    cluster.Stepped(i);
    cluster.Break();
  }
  EXPECT_EQ(NodeStateName(cluster.state_, "a"), "ready");
  EXPECT_EQ(cluster.job().phase(), v1::JOB_PHASE_PREPARING);
}

TEST(Faults, ACrashAtTheSameStepThreeTimesIsNotTriedAgain) {
  Cluster cluster;
  cluster.Do(Submitted{kJob, Spec(2)});
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
  cluster.Do(Submitted{kJob, Spec(2)});
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
  cluster.Do(Submitted{kJob, Spec(2)});
  cluster.Attach("a");
  cluster.StartAll();
  cluster.Say("a", [&](v1::AgentMessage& m) {
    *m.mutable_rank_exited()->mutable_run() = Cluster::RunWith(1);
    m.mutable_rank_exited()->mutable_exit()->set_signal(9);
    m.mutable_rank_exited()->mutable_exit()->set_out_of_memory(true);
  });
  cluster.StopAll();
  EXPECT_EQ(cluster.job().phase(), v1::JOB_PHASE_FAILED);
  EXPECT_THAT(cluster.job().error(), HasSubstr("for want of memory"));
}

TEST(Faults, RanksThatEndTooEarlyHaveNotSucceeded) {
  Cluster cluster;
  cluster.Do(Submitted{kJob, Spec(2)});
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
  cluster.Do(Submitted{kJob, Spec(4)});
  cluster.Attach("a");
  cluster.Attach("b");
  for (const char* node : {"a", "b"}) {
    cluster.Say(node, [&](v1::AgentMessage& m) {
      *m.mutable_data_prepared()->mutable_run() = Cluster::RunWith(1);
      m.mutable_data_prepared()->set_vocab_size(20);
      m.mutable_data_prepared()->set_digest(node);
    });
  }
  EXPECT_EQ(cluster.job().phase(), v1::JOB_PHASE_FAILED);
  EXPECT_THAT(cluster.job().error(), HasSubstr("node b has other data"));
}

TEST(Faults, OtherDataThanThatOfTheCheckpointEndsTheJobUnlessItIsAccepted) {
  Cluster cluster;
  cluster.Do(Submitted{kJob, Spec(2)});
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
  EXPECT_THAT(cluster.job().error(), HasSubstr("node a now has digest third, before other"));
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
    cluster.Do(Submitted{kJob, Spec(4)});
    cluster.Attach("a");
    cluster.Attach("b");
    cluster.StartAll();
    for (const char* node : {"a", "b"}) {
      const double off = node[0] == 'a' ? hours : -hours;
      cluster.Say(node, [&](v1::AgentMessage& m) {
        *m.mutable_logs()->mutable_run() = Cluster::RunWith(1);
        v1::LogLine* line = m.mutable_logs()->add_lines();
        line->set_attempt(1);
        line->mutable_time()->set_seconds(static_cast<int64_t>(1000 + off * 3600));
      });
      cluster.Say(node, [&](v1::AgentMessage& m) {
        *m.mutable_trace()->mutable_run() = Cluster::RunWith(1);
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
  cluster.Do(Submitted{kJob, Spec(2)});
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
  *health->mutable_run() = Cluster::RunWith(1);
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

TEST(Hang, IsNamedAndTheNextAttemptStarts) {
  Cluster cluster;
  cluster.Do(Submitted{kJob, Spec(4)});
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
    *answer.mutable_inspected()->mutable_run() = Cluster::RunWith(1);
    for (int rank = 0; rank < 4; ++rank) {
      if (cluster.job().slots(rank).node() != node) continue;
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
  EXPECT_EQ(cluster.last_.logs.size(), 6u);  // the stacks of those that answered
  cluster.StopAll();
  EXPECT_EQ(cluster.job().phase(), v1::JOB_PHASE_BACKING_OFF);
}

TEST(Hang, ANodeThatDoesNotAnswerEndsTheWaitForIt) {
  Cluster cluster;
  cluster.Do(Submitted{kJob, Spec(4)});
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

TEST(Hang, ProgressEndsTheSuspicion) {
  Cluster cluster;
  cluster.Do(Submitted{kJob, Spec(2)});
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
  for (const char* policy : {"report", "exclude"}) {
    Cluster cluster;
    v1::JobSpec spec = Spec(4);
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
    if (std::string(policy) == "report") {
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

TEST(Goodput, EverySecondHasItsKind) {
  Cluster cluster;
  cluster.Do(Submitted{kJob, Spec(2)});
  const double start = cluster.now_;
  cluster.Wait(10);
  cluster.Attach("a");
  cluster.Wait(2);
  cluster.StartAll();
  cluster.Wait(3);
  cluster.Stepped(1, 3);  // it has taken all of that
  cluster.Wait(20);
  cluster.Stepped(2, 20, 0.5);
  cluster.Committed(2);
  cluster.Wait(6);
  cluster.Stepped(3, 6);
  cluster.Exited(0, 0, 9);
  cluster.Wait(4);
  cluster.StopAll();
  cluster.Wait(2);
  ASSERT_EQ(cluster.job().phase(), v1::JOB_PHASE_PREPARING);
  cluster.StartAll(2);
  cluster.Stepped(3);
  cluster.Wait(5);
  const auto totals = LedgerTotals(cluster.job().ledger(), cluster.now_);
  const auto about = [&](v1::TimeKind kind, double seconds) {
    // Every event of this test takes a hundredth of a second.
    EXPECT_NEAR(static_cast<double>(totals[kind]) / 1e6, seconds, 0.3 + 0.03 * seconds)
        << v1::TimeKind_Name(kind);
  };
  about(v1::TIME_KIND_QUEUED, 10);
  about(v1::TIME_KIND_STARTING, 2);
  about(v1::TIME_KIND_PRODUCTIVE, 3 + 20 - 0.5 + 5);
  about(v1::TIME_KIND_CHECKPOINT_STALL, 0.5);
  about(v1::TIME_KIND_LOST_WORK, 6);
  about(v1::TIME_KIND_RESTARTING, 6);
  EXPECT_EQ(std::accumulate(totals.begin(), totals.end(), int64_t{0}),
            std::llround(cluster.now_ * 1e6) - std::llround(start * 1e6));
}

}  // namespace
}  // namespace tercio::coordinator
