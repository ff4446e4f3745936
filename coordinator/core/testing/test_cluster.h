// A core with nodes that carry out their orders immediately, for tests of the core.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "coordinator/core/core.h"
#include "coordinator/core/ledger.h"
#include "coordinator/core/testing/test_job.h"
#include "gtest/gtest.h"

namespace tercio::coordinator {

// Nodes of two devices each, which carry out their orders immediately.
class Cluster {
 public:
  Cluster() {
    settings_.node_lease = 15;
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
    hello.set_devices(devices_);
    hello.set_cores(2);
    hello.set_device_kind(device_kind_);
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
  std::set<std::string> NodesOfJob() {
    std::set<std::string> nodes;
    for (const auto& [name, node] : placement().nodes()) nodes.insert(name);
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
        m.mutable_data_prepared()->set_train_samples(train_samples_);
      });
    }
    if (IsTerminal(job().phase())) return;
    for (int rank = 0; rank < placement().ranks(); ++rank) {
      Say(placement().NodeOf(rank), [&](v1::AgentMessage& m) {
        *m.mutable_rank_phase()->mutable_run() = RunWith(attempt);
        m.mutable_rank_phase()->set_rank(rank);
        m.mutable_rank_phase()->set_phase(v1::TRAINER_PHASE_RUNNING);
      });
    }
    ASSERT_EQ(job().phase(), v1::JOB_PHASE_RUNNING) << job().error();
  }
  void Stepped(int64_t step, double seconds = 0.001, double stall = 0) {
    Say(placement().NodeOf(0), [&](v1::AgentMessage& m) {
      *m.mutable_step_report()->mutable_run() = RunWith(job().attempt());
      m.mutable_step_report()->set_checkpoint_seconds(stall);
      m.mutable_step_report()->mutable_record()->set_step(step);
      m.mutable_step_report()->mutable_record()->set_step_seconds(seconds);
      m.mutable_step_report()->mutable_record()->set_attempt(job().attempt());
    });
  }
  void Exited(int rank, int code, int signal = 0) {
    Say(placement().NodeOf(rank), [&](v1::AgentMessage& m) {
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
  // Every connected node sends a heartbeat.
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
  // A running job of the first attempt has ranks on both: it is stopped, and waits.
  void LoseNode(const std::string& node, const std::string& other) {
    state_.nodes.at(node).connected = false;
    Wait(16);
    Say(other, [](v1::AgentMessage& m) { *m.mutable_run_stopped()->mutable_run() = RunWith(1); });
  }
  void RestartCoordinator() {
    Stored stored;
    for (const auto& [id, job] : state_.jobs) {
      stored.jobs.push_back(job.record);
      if (job.plan != nullptr) stored.plans[id] = *job.plan;
      stored.placements[id] = job.placement->slots();
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
  const Placement& placement() { return *state_.jobs.at(kJob).placement; }
  State state_;
  v1::DeviceKind device_kind_ = v1::DEVICE_KIND_CPU;  // kind of the nodes that attach from now on
  int devices_ = 2;                                   // devices of each node
  Settings settings_ = PlanningSettings();
  Effects last_;
  double now_ = 1000;
  std::string data_ = "digest";  // digest of the nodes' data
  int64_t train_samples_ = 100;
  std::vector<std::string> kinds_;
  std::map<std::string, uint64_t> sequences_;
  std::map<std::string, uint64_t> acknowledged_;
};

}  // namespace tercio::coordinator
