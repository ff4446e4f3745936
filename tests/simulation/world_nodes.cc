#include <algorithm>
#include <csignal>

#include "absl/strings/str_cat.h"
#include "tests/simulation/world.h"

namespace tercio::simulation {

namespace {

constexpr int64_t kSpoolBytes = 1 << 20;
constexpr double kAgentGrace = 30;

}  // namespace

void World::StartAgent(const std::string& name) {
  Node& node = nodes_[name];
  node.up = true;
  node.leaving = false;
  node.state = {};
  StartMemory(name);
  node.spool.emplace(kSpoolBytes);
  if (node.disk.spool_id.empty()) node.disk.spool_id = std::to_string(random_());
  for (const auto& [sequence, bytes] : node.disk.spool) node.spool->Restore(sequence, bytes);
  node.spool->StartAt(node.disk.next_sequence);
  node.spool->ForgetDelta();
  StepAgent(name, {0, agent::Restored{node.disk.runs, node.disk.ended, node.disk.highest_attempt}});
  // Trainers that outlived the agent before say what they could not.
  std::vector<std::pair<agent::RunKey, int>> trainers;
  for (const auto& [key, trainer] : node.trainers) trainers.push_back(key);
  for (const auto& [run, rank] : trainers) TakeOutbox(name, run, rank);
  Connect(name);
}

void World::KillAgent(const std::string& name, bool for_good) {
  Node& node = nodes_[name];
  if (!node.up) return;
  node.up = false;
  node.memory = nullptr;
  node.down_since = now_;
  ++node.incarnation;
  Disconnect(name);
  const double back = Uniform(0.5, 45);
  At(kAgentGrace, [this, name, since = node.down_since] {
    Node& now = nodes_[name];
    if (now.up || now.down_since != since) return;
    for (auto& [key, trainer] : now.trainers) {
      if (trainer.alive) EndTrainer(name, key.first, key.second, 1, 0);
    }
  });
  if (!for_good) At(back, [this, name] { StartAgent(name); });
}

void World::KillMachine(const std::string& name, bool loses_disk) {
  Node& node = nodes_[name];
  // The others are enough for every job.
  KillAgent(name, /*for_good=*/name == "c" && Chance(0.3));
  node.trainers.clear();
  if (loses_disk) node.disk = {};
}

void World::Connect(const std::string& name) {
  At(Uniform(0.05, 3), [this, name] {
    Node& node = nodes_[name];
    if (node.connection != 0 || !node.up) return;
    if (!coordinator_up_) return Connect(name);
    node.connection = next_number_++;
    node.sent = 0;
    node.connected_at = now_;
    node.last_to = node.last_from = now_;
    v1::AgentHello hello;
    hello.set_node(name);
    hello.set_devices(kDevices);
    hello.set_cores(2);
    hello.set_spool_id(node.disk.spool_id);
    hello.set_snapshot_address(name);
    SayGpus(node, &hello);
    for (const v1::RunId& run : agent::RunsOf(node.state, agent::EndedRuns::kInclude))
      *hello.add_running() = run;
    Post(coordinator::NodeAttached{hello});
    v1::AgentMessage held;
    *held.mutable_snapshots_held() = node.memory->Inventory();
    FromNode(name, held);
    SendNews(name);
  });
}

void World::Disconnect(const std::string& name) {
  Node& node = nodes_[name];
  if (node.connection == 0) return;
  node.connection = 0;
  // The coordinator notices later, and not at all when the node has come back before.
  At(Uniform(0, 1), [this, name] {
    if (nodes_[name].connection == 0) Post(coordinator::NodeDetached{name});
  });
  if (node.up) Connect(name);
}

// A delay after which the last message of this direction has arrived.
double World::InOrder(double& last, double blocked) {
  last = std::max({last, now_ + Uniform(0.001, Chance(0.01) ? 5 : 0.1), blocked});
  return last - now_;
}

void World::ToNode(const std::string& name, const v1::CoordinatorMessage& message) {
  Node& node = nodes_[name];
  const int64_t connection = node.connection;
  if (connection == 0) return;
  At(InOrder(node.last_to, node.blocked_to), [this, name, connection, message] {
    const Node& now = nodes_[name];
    const bool arrives = now.connection == connection || now.last_words == connection;
    if (arrives && now.up) Receive(name, message);
  });
}

void World::FromNode(const std::string& name, const v1::AgentMessage& message) {
  Node& node = nodes_[name];
  const int64_t connection = node.connection;
  if (connection == 0) return;
  At(InOrder(node.last_from, node.blocked_from), [this, name, connection, message] {
    if (nodes_[name].connection == connection) Post(coordinator::NodeSaid{name, message});
  });
}

void World::SendNews(const std::string& name) {
  Node& node = nodes_[name];
  if (node.connection == 0) return;
  for (const v1::AgentMessage& message : node.spool->After(node.sent, kSpoolBytes)) {
    node.sent = message.sequence();
    FromNode(name, message);
  }
}

void World::Heartbeat(const std::string& name) {
  Node& node = nodes_[name];
  if (!node.up || node.connection == 0) return;
  v1::AgentMessage message;
  for (const v1::RunId& run : agent::RunsOf(node.state, agent::EndedRuns::kLeaveOut)) {
    v1::RunHealth* health = message.mutable_heartbeat()->add_health();
    *health->mutable_run() = run;
    const auto training = trainings_.find(agent::ToRunKey(run));
    if (training != trainings_.end()) {
      health->set_stalled_seconds(now_ - training->second.last_progress);
    }
  }
  SayGpus(node, message.mutable_heartbeat());
  FromNode(name, message);
}

void World::Receive(const std::string& name, const v1::CoordinatorMessage& message) {
  Node& node = nodes_[name];
  if (message.has_acknowledge()) {
    node.spool->Acknowledge(message.acknowledge().sequence());
    Keep(node, {});
    return;
  }
  if (message.has_drop_snapshots()) {
    return node.memory->Drop(message.drop_snapshots().job_id());
  }
  if (message.has_inspect_run()) {
    v1::AgentMessage answer;
    *answer.mutable_inspected()->mutable_run() = message.inspect_run().run();
    const agent::RunKey run = agent::ToRunKey(message.inspect_run().run());
    for (const auto& [key, trainer] : node.trainers) {
      if (key.first != run) continue;
      v1::RankPosition* position = answer.mutable_inspected()->add_ranks();
      position->set_rank(key.second);
      position->set_process_state(!trainer.alive ? "" : trainer.frozen ? "T" : "S");
    }
    return FromNode(name, answer);
  }
  StepAgent(name, {0, agent::CoordinatorSaid{message}});
}

void World::StepAgent(const std::string& name, agent::AgentEvent event) {
  std::deque<agent::AgentEvent> events;
  events.push_back(std::move(event));
  while (!events.empty() && nodes_[name].up) {
    Node& node = nodes_[name];
    agent::AgentEvent next = std::move(events.front());
    events.pop_front();
    next.now = now_;
    const std::vector<agent::AgentEffect> effects = agent::Step(node.state, next);
    Keep(node, effects);
    // It may die when all is durable and nothing is done.
    if (Faulty() && Chance(0.001)) return KillAgent(name);
    for (const agent::AgentEffect& effect : effects) Do(name, effect);
  }
  if (nodes_[name].up) SendNews(name);
}

// One transaction: what the event makes durable.
void World::Keep(Node& node, const std::vector<agent::AgentEffect>& effects) {
  for (const agent::AgentEffect& effect : effects) {
    if (const auto* tell = std::get_if<agent::SendToCoordinator>(&effect)) {
      node.spool->Append(tell->message);
    } else if (const auto* keep = std::get_if<agent::KeepRun>(&effect)) {
      const auto run = node.state.runs.find(keep->run);
      if (run != node.state.runs.end()) node.disk.runs[keep->run] = run->second;
    } else if (const auto* forget = std::get_if<agent::ForgetRun>(&effect)) {
      node.disk.runs.erase(forget->run);
    }
  }
  node.disk.ended = node.state.ended;
  node.disk.highest_attempt = node.state.highest_attempt;
  const agent::Spool::Delta& delta = node.spool->delta();
  node.disk.spool.erase(node.disk.spool.begin(), node.disk.spool.upper_bound(delta.acknowledged));
  for (const auto& [sequence, bytes] : delta.added) node.disk.spool[sequence] = bytes;
  for (const uint64_t sequence : delta.removed) node.disk.spool.erase(sequence);
  node.disk.next_sequence = node.spool->next();
  node.spool->ForgetDelta();
}

void World::Do(const std::string& name, const agent::AgentEffect& effect) {
  if (const auto* start = std::get_if<tercio::agent::StartTrainer>(&effect)) {
    StartTrainer(name, start->run, start->rank);
  } else if (const auto* adopt = std::get_if<agent::AdoptTrainer>(&effect)) {
    const auto found = nodes_[name].trainers.find({adopt->run, adopt->rank});
    if (found == nodes_[name].trainers.end()) {
      At(0, [this, name, run = adopt->run, rank = adopt->rank] {
        StepAgent(name, {0, agent::TrainerEnded{run, rank, 1, 0, {}, "gone", false}});
      });
    } else if (!found->second.alive) {
      SeeEnd(name, adopt->run, adopt->rank);
    }
  } else if (const auto* signal = std::get_if<agent::SignalTrainer>(&effect)) {
    Trainer* trainer = FindTrainer(name, signal->run, signal->rank);
    if (trainer == nullptr || !trainer->alive) return;
    if (signal->signal != SIGKILL && trainer->frozen) return;
    const double delay = signal->signal == SIGKILL ? 0.01 : Uniform(0.01, 0.5);
    At(delay, [=, this, run = signal->run, rank = signal->rank, number = signal->signal,
               process = trainer->process] {
      const Trainer* now = FindTrainer(name, run, rank);
      if (now != nullptr && now->process == process && now->alive) {
        EndTrainer(name, run, rank, 0, number);
      }
    });
  } else if (const auto* tell = std::get_if<agent::TellTrainer>(&effect)) {
    const auto training = trainings_.find(tell->run);
    const Trainer* trainer = FindTrainer(name, tell->run, tell->rank);
    if (tell->rank == 0 && training != trainings_.end() && trainer != nullptr && trainer->alive) {
      training->second.save_and_stop |= tell->command.save_now().then_stop();
    }
  } else if (const auto* read = std::get_if<agent::ReadData>(&effect)) {
    At(Uniform(0.05, 1),
       [this, name, run = read->request.run(), incarnation = nodes_[name].incarnation] {
         Node& node = nodes_[name];
         if (!node.up || node.incarnation != incarnation) return;
         v1::AgentMessage answer;
         *answer.mutable_data_prepared()->mutable_run() = run;
         answer.mutable_data_prepared()->set_vocab_size(20);
         answer.mutable_data_prepared()->set_train_samples(kSamples);
         node.spool->Append(answer);
         Keep(node, {});
         SendNews(name);
       });
  }
}

// What a trainer says waits until an agent takes it.
void World::SendFromRank(const std::string& name, const agent::RunKey& run, int rank,
                         v1::TrainerMessage message) {
  Trainer* trainer = FindTrainer(name, run, rank);
  if (trainer == nullptr) return;
  trainer->outbox.push_back(std::move(message));
  if (nodes_[name].up) TakeOutbox(name, run, rank);
}

void World::TakeOutbox(const std::string& name, const agent::RunKey& run, int rank) {
  Trainer* trainer = FindTrainer(name, run, rank);
  if (trainer == nullptr) return;
  const std::vector<v1::TrainerMessage> messages = std::exchange(trainer->outbox, {});
  for (size_t i = 0; i < messages.size(); ++i) {
    if (!nodes_[name].up) {
      trainer = FindTrainer(name, run, rank);
      if (trainer == nullptr) return;
      trainer->outbox.assign(messages.begin() + static_cast<std::ptrdiff_t>(i), messages.end());
      return;
    }
    StepAgent(name, {0, agent::TrainerSaid{run, rank, messages[i]}});
  }
}

}  // namespace tercio::simulation
