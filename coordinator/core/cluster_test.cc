// Several nodes: who gets devices, who loses them, and what a restarted coordinator makes of it.
#include <cmath>
#include <numeric>

#include "coordinator/core/testing/test_cluster.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::coordinator {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Spool, AReportThatIsInTheStoreChangesNothingASecondTime) {
  Cluster cluster;
  cluster.Do(Submitted{kJob, SmallSpec(2)});
  cluster.Attach("a");
  cluster.StartAll();
  v1::AgentMessage log;
  log.set_sequence(50);
  *log.mutable_logs()->mutable_run() = RunWith(1);
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
  // Another spool counts again.
  cluster.Attach("a", {1}, "other");
  log.set_sequence(1);
  EXPECT_EQ(cluster.Do(NodeSaid{"a", log}).logs.size(), 1u);
}

// An agent that lies, or was started with another's files, speaks of its own ranks only.
TEST(Fence, ANodeSaysNothingOfRunsThatOthersHave) {
  Cluster cluster;
  cluster.Do(Submitted{kJob, SmallSpec(2)});
  cluster.Attach("a");
  cluster.StartAll();
  cluster.Attach("liar");
  const std::set<std::string> own = {"a"};
  ASSERT_EQ(cluster.NodesOfJob(), own);
  const auto lie = [&cluster](const auto& fill) {
    const Effects effects = cluster.Say("liar", fill);
    EXPECT_TRUE(effects.steps.empty() && effects.logs.empty() && effects.traces.empty());
    EXPECT_TRUE(effects.messages.empty());
  };
  lie([](v1::AgentMessage& m) {
    *m.mutable_rank_exited()->mutable_run() = RunWith(1);
    m.mutable_rank_exited()->mutable_exit()->set_signal(9);
  });
  lie([](v1::AgentMessage& m) { *m.mutable_run_stopped()->mutable_run() = RunWith(1); });
  lie([](v1::AgentMessage& m) {
    *m.mutable_step_report()->mutable_run() = RunWith(1);
    m.mutable_step_report()->mutable_record()->set_attempt(1);
    m.mutable_step_report()->mutable_record()->set_step(1000);
  });
  lie([](v1::AgentMessage& m) {
    *m.mutable_logs()->mutable_run() = RunWith(1);
    m.mutable_logs()->add_lines()->set_line("all is well");
  });
  lie([](v1::AgentMessage& m) { *m.mutable_trace()->mutable_run() = RunWith(1); });
  lie([](v1::AgentMessage& m) {
    v1::SnapshotHeld* held = m.mutable_snapshots_held()->add_snapshots();
    *held->mutable_run() = RunWith(1);
    held->set_step(5);
    held->add_steps()->set_attempt(1);
  });
  lie([](v1::AgentMessage& m) {
    v1::RunHealth* health = m.mutable_heartbeat()->add_health();
    *health->mutable_run() = RunWith(1);
    health->set_stalled_seconds(1e6);
  });
  EXPECT_EQ(cluster.job().phase(), v1::JOB_PHASE_RUNNING);
  EXPECT_EQ(cluster.job().step(), 0);
  cluster.Stepped(1);  // those of its own node count
  EXPECT_EQ(cluster.job().step(), 1);
}

// Also what is said in kinds of messages that are added later.
TEST(Fence, NoKindOfMessageIsLeftOut) {
  Cluster cluster;
  cluster.Do(Submitted{kJob, SmallSpec(2)});
  cluster.Attach("a");
  cluster.StartAll();
  cluster.Attach("liar");
  const auto* bodies = v1::AgentMessage::descriptor()->FindOneofByName("body");
  int fenced = 0;
  for (int i = 0; i < bodies->field_count(); ++i) {
    const auto* kind = bodies->field(i);
    const auto* field = kind->message_type()->FindFieldByName("run");
    if (field == nullptr) continue;
    v1::AgentMessage message;
    auto* body = message.GetReflection()->MutableMessage(&message, kind);
    body->GetReflection()->MutableMessage(body, field)->CopyFrom(RunWith(1));
    EXPECT_EQ(cluster.Do(NodeSaid{"liar", message}).fenced, 1) << kind->name();
    ++fenced;
  }
  EXPECT_GE(fenced, 10);
}

// What a node is sent grows with its own ranks only, and what they share is said once.
TEST(Start, ANodeIsToldOfItsOwnRanks) {
  Cluster cluster;
  cluster.Do(Submitted{kJob, SmallSpec(8)});
  for (const char* node : {"a", "b", "c", "d"}) cluster.Attach(node);
  ASSERT_EQ(cluster.placement().ranks(), 8);
  cluster.Do(CheckpointFound{RunWith(1), 0, "", 0, {}});
  Effects effects;
  const auto prepared = [](v1::AgentMessage& m) {
    *m.mutable_data_prepared()->mutable_run() = RunWith(1);
    m.mutable_data_prepared()->set_vocab_size(20);
  };
  // A node that has nothing to do with the job is not counted.
  cluster.Attach("e");
  for (const char* node : {"e", "a", "b", "c", "c", "d"}) {
    ASSERT_EQ(effects.messages.size(), 0u) << "before " << node;
    effects = cluster.Say(node, prepared);
  }
  std::map<int, std::string> told;
  for (const SendToNode& send : effects.messages) {
    ASSERT_TRUE(send.message.has_start_run());
    const v1::StartRun& start = send.message.start_run();
    EXPECT_EQ(start.ranks_size(), 2);
    ASSERT_EQ(start.stages_size(), 1);
    EXPECT_GT(start.stages().at(0).actions_size(), 0);
    for (const v1::RankPlan& plan : start.ranks()) {
      told[plan.placement().rank()] = send.node;
      EXPECT_FALSE(plan.has_stage());
      EXPECT_GT(plan.groups_size(), 0);
    }
  }
  ASSERT_EQ(told.size(), 8u);
  for (const auto& [rank, node] : told) EXPECT_EQ(node, cluster.placement().NodeOf(rank));
}

TEST(Restart, ACoordinatorThatComesBackGoesOnWithTheAttempt) {
  Cluster cluster;
  cluster.Do(Submitted{kJob, SmallSpec(4)});
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
  cluster.Do(Submitted{kJob, SmallSpec(2)});
  cluster.Attach("a");
  cluster.Do(CheckpointFound{RunWith(1), 0, "", 0, {}});
  cluster.Say("a", [&](v1::AgentMessage& m) {
    *m.mutable_data_prepared()->mutable_run() = RunWith(1);
    m.mutable_data_prepared()->set_vocab_size(20);
  });
  const auto runs = [&](int rank) {
    cluster.Say("a", [&](v1::AgentMessage& m) {
      *m.mutable_rank_phase()->mutable_run() = RunWith(1);
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

// A search reads every byte of a checkpoint.
TEST(Restart, OneSearchForACheckpointHoweverManyNodesComeBack) {
  Cluster cluster;
  cluster.Attach("a");
  cluster.Attach("b");
  EXPECT_EQ(cluster.Do(Submitted{kJob, SmallSpec(4)}).searches.size(), 1u);
  cluster.Attach("b");
  EXPECT_EQ(cluster.last_.searches.size(), 0u) << "it is under way";
  cluster.RestartCoordinator();
  cluster.Attach("a");
  EXPECT_EQ(cluster.last_.searches.size(), 1u) << "nobody searches any more";
  cluster.Attach("b");
  EXPECT_EQ(cluster.last_.searches.size(), 0u);
  cluster.StartAll();
  cluster.Break();
  ASSERT_EQ(cluster.job().phase(), v1::JOB_PHASE_PREPARING);
  cluster.RestartCoordinator();
  cluster.Attach("a");
  EXPECT_EQ(cluster.last_.searches.size(), 1u) << "each attempt has its own";
}

TEST(Restart, AnOrderThatNeverArrivedIsGivenAgain) {
  Cluster cluster;
  cluster.Do(Submitted{kJob, SmallSpec(2)});
  cluster.Attach("a");
  cluster.Do(CheckpointFound{RunWith(1), 0, "", 0, {}});
  cluster.Say("a", [&](v1::AgentMessage& m) {
    *m.mutable_data_prepared()->mutable_run() = RunWith(1);
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

v1::JobSpec CudaSpec(int ranks) {
  v1::JobSpec spec = SmallSpec(ranks);
  spec.mutable_resources()->set_device(v1::DEVICE_KIND_CUDA);
  return spec;
}

TEST(Devices, AJobWaitsForItsKindAndOthersPassIt) {
  Cluster cluster;
  cluster.Do(Submitted{"gpus", CudaSpec(2)});
  cluster.Do(Submitted{kJob, SmallSpec(2)});
  cluster.Attach("a");
  EXPECT_EQ(cluster.state_.jobs.at("gpus").record.phase(), v1::JOB_PHASE_QUEUED);
  EXPECT_EQ(cluster.state_.jobs.at("gpus").record.error(),
            "waiting: needs 2 GPUs, 0 of 0 are free");
  EXPECT_EQ(cluster.job().phase(), v1::JOB_PHASE_PREPARING);
  cluster.device_kind_ = v1::DEVICE_KIND_CUDA;
  cluster.Attach("g");
  EXPECT_EQ(cluster.state_.jobs.at("gpus").record.phase(), v1::JOB_PHASE_PREPARING);
  EXPECT_TRUE(cluster.state_.jobs.at("gpus").placement->Has("g"));
}

TEST(Devices, AJobForALargerClusterStopsOthersForAMinuteOnly) {
  Cluster cluster;
  cluster.Attach("a");
  cluster.Do(Submitted{"large", SmallSpec(4)});
  cluster.Do(Submitted{kJob, SmallSpec(2)});
  cluster.Wait(50);
  EXPECT_EQ(cluster.job().phase(), v1::JOB_PHASE_QUEUED) << "nodes may still come";
  cluster.Wait(20);
  EXPECT_EQ(cluster.job().phase(), v1::JOB_PHASE_PREPARING);
  // Where it fits into the cluster, nobody overtakes it, however long it waits.
  cluster.Attach("b");
  cluster.Do(Submitted{"small", SmallSpec(1)});
  cluster.Wait(1000);
  EXPECT_EQ(cluster.state_.jobs.at("small").record.phase(), v1::JOB_PHASE_QUEUED);
  cluster.Do(CancelRequested{kJob});
  cluster.StopAll();
  EXPECT_EQ(cluster.state_.jobs.at("large").record.phase(), v1::JOB_PHASE_PREPARING);
}

TEST(Devices, NobodyOvertakesAJobThatHasRun) {
  Cluster cluster;
  cluster.Do(Submitted{kJob, SmallSpec(4)});
  cluster.Attach("a");
  cluster.Attach("b");
  cluster.StartAll();
  cluster.LoseNode("b", "a");
  cluster.state_.nodes.erase("b");  // forgotten, after a day
  cluster.Wait(100);
  EXPECT_EQ(cluster.job().phase(), v1::JOB_PHASE_QUEUED);
  cluster.Do(Submitted{"small", SmallSpec(1)});
  cluster.Wait(1000);
  EXPECT_EQ(cluster.state_.jobs.at("small").record.phase(), v1::JOB_PHASE_QUEUED);
}

TEST(Devices, JobsOfANodeHaveDifferentOnes) {
  Cluster cluster;
  cluster.device_kind_ = v1::DEVICE_KIND_CUDA;
  cluster.Attach("g");
  cluster.Do(Submitted{kJob, CudaSpec(1)});
  cluster.Do(Submitted{"second", CudaSpec(1)});
  EXPECT_EQ(cluster.placement().DeviceOf(0), 0);
  EXPECT_EQ(cluster.state_.jobs.at("second").placement->DeviceOf(0), 1);
}

// A machine starts again and has lost a device: counted at its hello.
TEST(Devices, ANodeThatComesBackWithFewerHasWhatItHas) {
  for (const int least : {0, 1}) {  // elastic_min_ranks
    SCOPED_TRACE(least);
    Cluster cluster;
    v1::JobSpec spec = SmallSpec(2);
    spec.mutable_fault_tolerance()->set_elastic_min_ranks(least);
    spec.mutable_fault_tolerance()->set_elastic_wait_seconds(60);
    cluster.Do(Submitted{kJob, spec});
    cluster.Attach("a");
    cluster.StartAll();
    cluster.Stepped(7);
    cluster.Committed(7);
    cluster.devices_ = 1;
    cluster.Attach("a");
    cluster.StopAll();
    cluster.Wait(30);
    EXPECT_EQ(FreeSlots(cluster.state_, "a"), 1);
    ASSERT_EQ(cluster.job().phase(), v1::JOB_PHASE_QUEUED);
    EXPECT_EQ(cluster.job().error(), "waiting: needs 2 devices, 1 of 1 are free");
    cluster.Wait(60);
    if (least == 0) {
      EXPECT_EQ(cluster.job().phase(), v1::JOB_PHASE_QUEUED);
      cluster.devices_ = 2;
      cluster.Attach("a");
    }
    ASSERT_EQ(cluster.job().phase(), v1::JOB_PHASE_PREPARING);
    EXPECT_EQ(cluster.placement().ranks(), least == 0 ? 2 : 1);
    cluster.StartAll(7);
    EXPECT_EQ(cluster.job().restarts(), 1);
  }
}

// Before anything has started that costs nothing.
TEST(Devices, AJobIsPlacedAnewWhenItsNodeComesBackWithFewer) {
  Cluster cluster;
  cluster.Do(Submitted{kJob, SmallSpec(2)});
  cluster.Attach("a");
  ASSERT_EQ(cluster.job().phase(), v1::JOB_PHASE_PREPARING);
  cluster.devices_ = 1;
  cluster.Attach("a");
  cluster.Wait(2);
  ASSERT_EQ(cluster.job().phase(), v1::JOB_PHASE_QUEUED);
  cluster.Attach("b");
  ASSERT_EQ(cluster.job().phase(), v1::JOB_PHASE_PREPARING);
  EXPECT_EQ(cluster.NodesOfJob(), (std::set<std::string>{"a", "b"}));
  EXPECT_EQ(cluster.job().restarts(), 0);
}

// What the first attempt has chosen is kept, for its job and for the next one like it.
TEST(Products, AreChosenOnce) {
  Cluster cluster;
  cluster.device_kind_ = v1::DEVICE_KIND_CUDA;
  v1::JobSpec spec = SmallSpec(2);
  spec.mutable_resources()->set_device(v1::DEVICE_KIND_CUDA);
  cluster.Do(Submitted{kJob, spec});
  cluster.Attach("a");
  cluster.StartAll();
  const auto choose = [&](int stage, const std::string& gpu, int64_t m) {
    return cluster.Say("a", [&](v1::AgentMessage& message) {
      v1::ProductsChosen* chosen = message.mutable_products_chosen();
      *chosen->mutable_run() = RunWith(cluster.job().attempt());
      chosen->set_stage(stage);
      chosen->mutable_products()->set_gpu(gpu);
      chosen->mutable_products()->add_algorithms()->set_m(m);
    });
  };
  const auto rows = [&](const std::string& job) {
    std::vector<int64_t> found;
    for (const auto& algorithm :
         cluster.state_.jobs.at(job).plan->stages(0).products().algorithms()) {
      found.push_back(algorithm.m());
    }
    return found;
  };
  EXPECT_TRUE(choose(0, "H", 1).changed_plans.contains(kJob));
  EXPECT_FALSE(choose(7, "H", 2).changed_plans.contains(kJob));
  choose(0, "H", 3);
  EXPECT_EQ(rows(kJob), (std::vector<int64_t>{1, 3}));
  cluster.Break();
  cluster.StartAll();
  EXPECT_EQ(rows(kJob), (std::vector<int64_t>{1, 3}));
  choose(0, "other", 4);  // the ranks came to another kind of GPU
  EXPECT_EQ(rows(kJob), (std::vector<int64_t>{4}));
  cluster.RestartCoordinator();
  EXPECT_EQ(rows(kJob), (std::vector<int64_t>{4}));

  const auto next = [&](const std::string& id, const v1::JobSpec& job) {
    cluster.Attach("b" + id);
    cluster.Do(Submitted{id, job});
    v1::RunId run;
    run.set_job_id(id);
    run.set_attempt(1);
    cluster.Do(CheckpointFound{run, 0, "", 0, {}});
    cluster.Say("b" + id, [&](v1::AgentMessage& message) {
      *message.mutable_data_prepared()->mutable_run() = run;
      message.mutable_data_prepared()->set_vocab_size(20);
    });
    return rows(id);
  };
  EXPECT_EQ(next("like", spec), (std::vector<int64_t>{4}));
  spec.mutable_training()->set_precision(v1::PRECISION_FP16);
  EXPECT_EQ(next("other", spec), (std::vector<int64_t>{}));
}

TEST(Devices, AGpusMemoryIsTheRanksAndNotTheNodes) {
  v1::AgentHello hello;
  hello.set_devices(2);
  EXPECT_EQ(MemoryOfRank(hello, 2), kUnknownMemory);
  hello.set_memory_bytes(int64_t{64} << 30);
  EXPECT_EQ(MemoryOfRank(hello, 2), int64_t{32} << 30);
  hello.add_device_facts()->set_memory_bytes(int64_t{80} << 30);
  hello.add_device_facts()->set_memory_bytes(int64_t{40} << 30);
  EXPECT_EQ(MemoryOfRank(hello, 1), int64_t{77} << 29);
  EXPECT_FALSE(SharesGpus(hello));
  hello.set_devices(4);  // two ranks share a GPU
  EXPECT_EQ(MemoryOfRank(hello, 1), int64_t{77} << 28);
  EXPECT_TRUE(SharesGpus(hello));
}

TEST(Drain, JobsSaveAndGoElsewhereAtNoCost) {
  Cluster cluster;
  cluster.Do(Submitted{kJob, SmallSpec(2)});
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

TEST(Figures, AreKeptWithTheirNodeOverRestarts) {
  Cluster cluster;
  cluster.Attach("a");
  v1::MachineFigures figures;
  figures.set_device("cpu");
  figures.set_link_seconds(1e-4);
  cluster.last_ = cluster.Do(FiguresRecorded{"a", figures});
  EXPECT_TRUE(cluster.last_.answer.ok());
  cluster.RestartCoordinator();
  cluster.Attach("a");
  EXPECT_EQ(cluster.state_.nodes.at("a").record.figures().link_seconds(), 1e-4);
  EXPECT_EQ(cluster.state_.nodes.at("a").record.figures().recorded().seconds(),
            static_cast<int64_t>(cluster.now_));
  // The newest ones count.
  figures.set_link_seconds(2e-4);
  cluster.last_ = cluster.Do(FiguresRecorded{"a", figures});
  EXPECT_EQ(cluster.state_.nodes.at("a").record.figures().link_seconds(), 2e-4);
  cluster.last_ = cluster.Do(FiguresRecorded{"a", std::nullopt});
  EXPECT_TRUE(cluster.last_.answer.ok());
  EXPECT_FALSE(cluster.state_.nodes.at("a").record.has_figures());
}

TEST(Figures, AnUnknownNodeHasNone) {
  Cluster cluster;
  cluster.Attach("a");
  cluster.last_ = cluster.Do(FiguresRecorded{"x", {}});
  EXPECT_EQ(cluster.last_.answer.code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(cluster.state_.nodes.at("a").record.has_figures());
}

TEST(Drain, ARankThatDiesWhileItSavesEndsTheSaving) {
  Cluster cluster;
  cluster.Do(Submitted{kJob, SmallSpec(2)});
  cluster.Attach("a");
  cluster.StartAll();
  cluster.Stepped(7);
  cluster.ChangeNode("a", NodeChange::kDrain);
  const Effects effects = cluster.Say("a", [&](v1::AgentMessage& m) {
    *m.mutable_rank_exited()->mutable_run() = RunWith(1);
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
  cluster.Do(Submitted{kJob, SmallSpec(2)});
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
  v1::JobSpec spec = SmallSpec(4);
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
  cluster.Say("a",
              [&](v1::AgentMessage& m) { *m.mutable_run_stopped()->mutable_run() = RunWith(1); });
  cluster.Wait(30);
  ASSERT_EQ(cluster.job().phase(), v1::JOB_PHASE_QUEUED);
  EXPECT_THAT(cluster.job().error(), HasSubstr("needs 4 devices"));
  cluster.Wait(40);
  ASSERT_EQ(cluster.job().phase(), v1::JOB_PHASE_PREPARING);
  EXPECT_EQ(cluster.placement().ranks(), 2);
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
  EXPECT_EQ(cluster.placement().ranks(), 2);
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
  EXPECT_EQ(cluster.placement().ranks(), 4);
  EXPECT_EQ(PresentSpec(cluster.job()).parallelism().data(), 4);
  EXPECT_EQ(cluster.job().restarts(), restarts);
  EXPECT_THAT(cluster.kinds_, Contains("grown"));
}

TEST(Elastic, WithoutTheKeyAJobWaits) {
  Cluster cluster;
  cluster.Do(Submitted{kJob, SmallSpec(4)});
  cluster.Attach("a");
  cluster.Attach("b");
  cluster.StartAll();
  cluster.LoseNode("b", "a");
  cluster.Wait(1000);
  EXPECT_EQ(cluster.job().phase(), v1::JOB_PHASE_QUEUED);
}

TEST(Goodput, EverySecondHasItsKind) {
  Cluster cluster;
  cluster.Do(Submitted{kJob, SmallSpec(2)});
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
