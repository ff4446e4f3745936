// The coordinator's core with simulated agents and every fault that a network and machines have, in
// one thread and virtual time: broken connections lose what is under way in both directions and
// repeat what was not acknowledged, messages are late, trainers and nodes die, the coordinator
// restarts from what was durable.
//
// Invariants, checked at every event:
//   - a rank is started only when no node that the coordinator counts as alive runs an older
//   attempt of the job
//   - a checkpoint is committed by the present attempt only
//   - a job that has ended stays as it is
//   - devices are never given out twice
// and in the end, when faults have stopped, every job has ended.
#include <cstdlib>
#include <functional>
#include <queue>
#include <random>

#include "coordinator/core/core.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::coordinator {
namespace {

constexpr double kFaultsEnd = 120;
constexpr double kEnd = 4000;
// A node that was lost and has come back needs this long to stop what it should not run.
constexpr double kStopTime = 3;
constexpr int kSlots = 2;
constexpr int kJobSteps = 12;
constexpr int kCheckpointEvery = 4;

class Simulation {
 public:
  explicit Simulation(uint64_t seed) : random_(seed) {
    settings_.make_plan = [](const v1::JobSpec& spec, const std::vector<plan::DeviceSlot>& slots,
                             const RankShare& share) -> absl::StatusOr<v1::Plan> {
      const absl::StatusOr<v1::Layout> layout = plan::LayoutOfJob(spec);
      if (!layout.ok()) return layout.status();
      return plan::BuildPlan(spec, *layout, slots, share.threads);
    };
    for (const char* name : {"a", "b", "c"}) nodes_[name];
  }

  void Run() {
    for (auto& [name, node] : nodes_) Connect(name);
    for (int i = 1; i <= 3; ++i) {
      At(Uniform(0, 30), [this, i] { Submit(i); });
    }
    Repeat(0.5, [this] { Post(Tick{}); });
    Repeat(1.0, [this] { Fault(); });
    while (now_ < kEnd && !AllEnded() && !::testing::Test::HasFailure()) {
      const Timed event = events_.top();
      events_.pop();
      now_ = event.time;
      event.action();
    }
    for (const auto& [id, job] : state_.jobs) {
      EXPECT_TRUE(IsTerminal(job.record.phase()))
          << id << " is " << v1::JobPhase_Name(job.record.phase()) << ": " << job.record.error();
    }
    EXPECT_EQ(state_.jobs.size(), 3u);
  }

 private:
  struct Timed {
    double time;
    int64_t order;
    std::function<void()> action;
    bool operator<(const Timed& other) const {
      return time != other.time ? time > other.time : order > other.order;
    }
  };
  using RunKey = std::pair<std::string, int>;
  struct LocalRun {
    std::map<int, int64_t> ranks;  // rank -> incarnation of its process
    int64_t resume_step = 0;
  };
  struct Node {
    int64_t connection = 0;  // 0: none; messages of another one are lost
    int64_t incarnation = 1;
    std::map<RunKey, LocalRun> runs;
    std::vector<v1::AgentMessage> unsent;
    // A connection keeps its order, in each direction.
    double connected_at = 0;
    double last_to = 0;
    double last_from = 0;
  };

  bool AllEnded() const {
    if (Faulty() || state_.jobs.size() < 3) return false;
    for (const auto& [id, job] : state_.jobs) {
      if (!IsTerminal(job.record.phase())) return false;
    }
    return true;
  }

  double Uniform(double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random_);
  }
  bool Chance(double probability) { return Uniform(0, 1) < probability; }
  bool Faulty() const { return now_ < kFaultsEnd; }

  void At(double delay, std::function<void()> action) {
    events_.push({now_ + delay, next_order_++, std::move(action)});
  }
  void Repeat(double interval, std::function<void()> action) {
    At(interval, [this, interval, action] {
      action();
      Repeat(interval, action);
    });
  }

  static v1::JobSpec Spec(int number) {
    v1::JobSpec spec;
    spec.set_name("job " + std::to_string(number));
    v1::ModelSpec* model = spec.mutable_model();
    model->set_layers(2);
    model->set_hidden(16);
    model->set_heads(2);
    model->set_ffn_hidden(16);
    model->set_context(4);
    spec.mutable_training()->set_steps(kJobSteps);
    spec.mutable_training()->set_global_batch(4);
    spec.mutable_parallelism()->set_tensor(number == 3 ? 2 : 1);
    spec.mutable_parallelism()->set_pipeline(1);
    spec.mutable_parallelism()->set_data(2);
    spec.mutable_resources()->set_ranks(number == 3 ? 4 : 2);
    spec.mutable_checkpoint()->set_keep_last(2);
    spec.mutable_fault_tolerance()->set_max_restarts(1000);
    return spec;
  }

  // ---- the coordinator ----

  // A client tries again while the coordinator is away.
  void Submit(int number) {
    if (coordinator_up_) return Post(Submitted{"job-" + std::to_string(number), Spec(number)});
    At(1, [this, number] { Submit(number); });
  }

  template <typename Body>
  void Post(Body body) {
    if (!coordinator_up_) return;
    Event event{now_, std::to_string(random_()), std::move(body)};
    const bool asked_to_resume = std::holds_alternative<ResumeRequested>(event.body);
    const Effects effects = Step(state_, event, settings_);
    CheckState(effects, asked_to_resume);
    for (const std::string& name : effects.disconnected) Disconnect(name);
    for (const SendToNode& send : effects.messages) ToNode(send.node, send.message);
    for (const FindCheckpoint& search : effects.searches) {
      At(Uniform(0, 0.2), [this, run = search.run] {
        CheckpointFound found;
        found.run = run;
        found.step = checkpoints_[run.job_id()];
        Post(found);
      });
    }
  }

  void CheckState(const Effects& effects, bool asked_to_resume) {
    std::map<std::string, int> used;
    for (const auto& [id, job] : state_.jobs) {
      for (const v1::RankSlot& slot : job.record.slots()) ++used[slot.node()];
      if (!effects.changed_jobs.contains(id)) continue;
      const auto ended = ended_.find(id);
      if (ended != ended_.end() && !asked_to_resume) {
        EXPECT_EQ(ended->second, job.record.SerializeAsString())
            << id << " has changed after its end";
      }
      ended_.erase(id);
      if (IsTerminal(job.record.phase())) ended_[id] = job.record.SerializeAsString();
    }
    for (const auto& [node, count] : used) EXPECT_LE(count, kSlots) << node;
  }

  void RestartCoordinator() {
    coordinator_up_ = false;
    for (auto& [name, node] : nodes_) Disconnect(name);
    At(Uniform(0.5, 20), [this] {
      coordinator_up_ = true;
      // What the store keeps; the rest is told again by the agents.
      State loaded;
      for (const auto& [id, job] : state_.jobs) {
        loaded.jobs[id].record = job.record;
        for (const v1::RankSlot& slot : job.record.slots()) {
          loaded.nodes[slot.node()].hello.set_node(slot.node());
          loaded.nodes[slot.node()].last_heard = now_;
        }
      }
      loaded.next_number = state_.next_number;
      state_ = loaded;
    });
  }

  // ---- connections ----

  void Connect(const std::string& name) {
    At(Uniform(0.05, 3), [this, name] {
      Node& node = nodes_[name];
      if (node.connection != 0) return;
      if (!coordinator_up_) return Connect(name);
      node.connection = ++next_connection_;
      node.connected_at = now_;
      v1::AgentHello hello;
      hello.set_node(name);
      hello.set_devices(kSlots);
      hello.set_cores(2);
      for (const auto& [key, run] : node.runs) {
        hello.add_running()->set_job_id(key.first);
        hello.mutable_running(hello.running_size() - 1)->set_attempt(key.second);
      }
      Post(NodeAttached{hello});
      std::vector<v1::AgentMessage> unsent = std::move(node.unsent);
      node.unsent.clear();
      for (const v1::AgentMessage& message : unsent) FromNode(name, message);
    });
  }

  void Disconnect(const std::string& name) {
    Node& node = nodes_[name];
    if (node.connection == 0) return;
    node.connection = 0;
    // The coordinator notices later, and not at all when the node has come back before.
    At(Uniform(0, 1), [this, name] {
      if (nodes_[name].connection == 0) Post(NodeDetached{name});
    });
    Connect(name);
  }

  // A delay after which the last message of this direction has arrived.
  double InOrder(double& last) {
    last = std::max(last, now_ + Uniform(0.001, 0.1));
    return last - now_;
  }

  void ToNode(const std::string& name, const v1::CoordinatorMessage& message) {
    const int64_t connection = nodes_[name].connection;
    if (connection == 0) return;
    At(InOrder(nodes_[name].last_to), [this, name, connection, message] {
      if (nodes_[name].connection == connection) NodeReceives(name, message);
    });
  }

  // Kept until the coordinator has it, and then perhaps told twice.
  void FromNode(const std::string& name, const v1::AgentMessage& message) {
    Node& node = nodes_[name];
    const int64_t connection = node.connection;
    if (connection == 0) {
      node.unsent.push_back(message);
      return;
    }
    At(InOrder(node.last_from), [this, name, connection, message, sender = node.incarnation] {
      Node& now = nodes_[name];
      if (now.incarnation != sender) return;  // it died with its queue
      if (now.connection != connection || !coordinator_up_) return FromNode(name, message);
      Post(NodeSaid{name, message});
      if (Chance(0.05)) Post(NodeSaid{name, message});
    });
  }

  // ---- nodes ----

  void NodeReceives(const std::string& name, const v1::CoordinatorMessage& message) {
    if (message.has_prepare_data()) {
      At(Uniform(0.01, 2),
         [this, name, incarnation = nodes_[name].incarnation, run = message.prepare_data().run()] {
           if (nodes_[name].incarnation != incarnation) return;
           v1::AgentMessage answer;
           *answer.mutable_data_prepared()->mutable_run() = run;
           answer.mutable_data_prepared()->set_vocab_size(16);
           FromNode(name, answer);
         });
    } else if (message.has_start_run()) {
      StartRun(name, message.start_run());
    } else if (message.has_stop_run()) {
      const RunKey key{message.stop_run().run().job_id(), message.stop_run().run().attempt()};
      At(Uniform(0, 1), [this, name, key] { StopRun(name, key); });
    }
  }

  void StartRun(const std::string& name, const v1::StartRun& start) {
    Node& node = nodes_[name];
    const RunKey key{start.run().job_id(), start.run().attempt()};
    if (node.runs.contains(key)) return;
    for (const auto& [other, run] : node.runs) {
      if (other.first == key.first && other.second > key.second) return;
    }
    for (const auto& [other_name, other] : nodes_) {
      const auto known = state_.nodes.find(other_name);
      const bool counted = coordinator_up_ && known != state_.nodes.end() &&
                           known->second.connected && other.connection != 0 &&
                           now_ - known->second.last_heard < 1;
      for (const auto& [other_key, run] : other.runs) {
        EXPECT_FALSE(counted && other_name != name && other_key.first == key.first &&
                     other_key.second < key.second)
            << key.first << ": attempt " << key.second << " starts on " << name << " while "
            << other_name << " runs attempt " << other_key.second;
      }
    }
    LocalRun& run = node.runs[key];
    run.resume_step = start.resume_step();
    for (const v1::RankPlan& rank : start.ranks()) {
      const int index = rank.placement().rank();
      const int64_t incarnation = run.ranks[index] = ++next_process_;
      At(Uniform(0.1, 2), [=, this] { RankRuns(name, key, index, incarnation); });
    }
  }

  bool Lives(const std::string& name, const RunKey& key, int rank, int64_t process) {
    const auto run = nodes_[name].runs.find(key);
    if (run == nodes_[name].runs.end()) return false;
    const auto found = run->second.ranks.find(rank);
    return found != run->second.ranks.end() && found->second == process;
  }

  void RankRuns(const std::string& name, const RunKey& key, int rank, int64_t process) {
    if (!Lives(name, key, rank, process)) return;
    v1::AgentMessage message;
    SetRun(key, message.mutable_rank_phase()->mutable_run());
    message.mutable_rank_phase()->set_rank(rank);
    message.mutable_rank_phase()->set_phase(v1::TRAINER_PHASE_RUNNING);
    FromNode(name, message);
    const int64_t step = nodes_[name].runs[key].resume_step;
    At(Uniform(0.2, 1), [=, this] { RankSteps(name, key, rank, process, step + 1); });
  }

  void RankSteps(const std::string& name, const RunKey& key, int rank, int64_t process,
                 int64_t step) {
    if (!Lives(name, key, rank, process)) return;
    if (rank == 0 && step <= kJobSteps) {
      v1::AgentMessage message;
      SetRun(key, message.mutable_step_report()->mutable_run());
      message.mutable_step_report()->mutable_record()->set_step(step);
      message.mutable_step_report()->mutable_record()->set_attempt(key.second);
      FromNode(name, message);
      if (step % kCheckpointEvery == 0) CommitLater(key, step);
    }
    if (step >= kJobSteps) {
      At(Uniform(0.1, 1), [=, this] {
        if (Lives(name, key, rank, process)) EndRank(name, key, rank, 0);
      });
      return;
    }
    At(Uniform(0.2, 1), [=, this] { RankSteps(name, key, rank, process, step + 1); });
  }

  // The checkpoint service lets the present attempt commit, and nobody else.
  void CommitLater(const RunKey& key, int64_t step) {
    At(Uniform(0, 3), [this, key, step] {
      if (!coordinator_up_) return;
      const v1::JobRecord& record = state_.jobs.at(key.first).record;
      if (record.attempt() != key.second || IsTerminal(record.phase())) return;
      checkpoints_[key.first] = step;
      CheckpointCommitted committed;
      SetRun(key, &committed.run);
      committed.step = step;
      committed.path = "path";
      Post(committed);
    });
  }

  static void SetRun(const RunKey& key, v1::RunId* run) {
    run->set_job_id(key.first);
    run->set_attempt(key.second);
  }

  void EndRank(const std::string& name, const RunKey& key, int rank, int code) {
    LocalRun& run = nodes_[name].runs[key];
    run.ranks.erase(rank);
    v1::AgentMessage message;
    SetRun(key, message.mutable_rank_exited()->mutable_run());
    message.mutable_rank_exited()->mutable_exit()->set_rank(rank);
    message.mutable_rank_exited()->mutable_exit()->set_exit_code(code);
    FromNode(name, message);
    if (!run.ranks.empty()) return;
    nodes_[name].runs.erase(key);
    SayStopped(name, key);
  }

  void SayStopped(const std::string& name, const RunKey& key) {
    v1::AgentMessage stopped;
    SetRun(key, stopped.mutable_run_stopped()->mutable_run());
    FromNode(name, stopped);
  }

  void StopRun(const std::string& name, const RunKey& key) {
    const auto run = nodes_[name].runs.find(key);
    if (run == nodes_[name].runs.end()) return SayStopped(name, key);
    const std::map<int, int64_t> ranks = run->second.ranks;
    for (const auto& [rank, process] : ranks) EndRank(name, key, rank, 1);
  }

  // ---- faults ----

  void Fault() {
    for (auto& [name, node] : nodes_) {
      if (node.connection != 0) Post(NodeSaid{name, v1::AgentMessage()});  // a heartbeat
    }
    if (!Faulty()) return;
    for (auto& [name, node] : nodes_) {
      if (Chance(0.03)) Disconnect(name);
      if (Chance(0.01)) KillNode(name);
      if (Chance(0.03) && !node.runs.empty()) {
        const RunKey key = node.runs.begin()->first;
        const int rank = node.runs.begin()->second.ranks.begin()->first;
        EndRank(name, key, rank, 1);
      }
    }
    if (coordinator_up_ && Chance(0.01)) RestartCoordinator();
    if (Chance(0.01)) Post(CancelRequested{"job-2", Chance(0.5), "cancelled"});
    if (Chance(0.02)) {
      const auto job = state_.jobs.find("job-2");
      if (job != state_.jobs.end()) Post(ResumeRequested{"job-2", job->second.record.spec()});
    }
  }

  // The agent and all its trainers are gone; it comes back knowing nothing.
  void KillNode(const std::string& name) {
    Node& node = nodes_[name];
    ++node.incarnation;
    node.runs.clear();
    node.unsent.clear();
    if (node.connection != 0) {
      Disconnect(name);
    }
  }

  std::mt19937_64 random_;
  double now_ = 0;
  std::priority_queue<Timed> events_;
  int64_t next_order_ = 0;
  int64_t next_connection_ = 0;
  int64_t next_process_ = 0;
  Settings settings_;
  State state_;
  std::map<std::string, std::string> ended_;  // records of jobs that have ended
  bool coordinator_up_ = true;
  std::map<std::string, Node> nodes_;
  std::map<std::string, int64_t> checkpoints_;
};

TEST(Simulation, ThousandSeeds) {
  const char* chosen = std::getenv("TERCIO_SIMULATION_SEED");
  const uint64_t first = chosen != nullptr ? std::strtoull(chosen, nullptr, 10) : 1;
  const uint64_t last = chosen != nullptr ? first : 1000;
  for (uint64_t seed = first; seed <= last; ++seed) {
    SCOPED_TRACE("TERCIO_SIMULATION_SEED=" + std::to_string(seed));
    Simulation(seed).Run();
    if (HasFailure()) {
      std::printf("failed with seed %llu\n", static_cast<unsigned long long>(seed));
      return;
    }
  }
}

}  // namespace
}  // namespace tercio::coordinator
