// The trainers of a node: does what the agent's core (core/agent_core.h) decides, with real
// processes, and carries what they say to the core, the metrics and the coordinator.
//
// Threads: all methods from any thread. Callbacks into it come from trainers' watchers, from the
// trainer service and from the link to the coordinator.
#pragma once

#include <condition_variable>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/tercio/v1/node_service.pb.h"
#include "proto/tercio/v1/trainer.pb.h"
#include "worker/agent/agent_metrics.h"
#include "worker/agent/core/agent_core.h"
#include "worker/agent/rank_inspector.h"
#include "worker/agent/trainer_process.h"

namespace tercio {

struct AgentOptions {
  std::string node;
  std::string state_dir;
  std::string socket;        // of the trainer service
  std::string trainer;       // program
  std::string data_address;  // for collectives
  int slots = 1;
  int cores = 1;  // of the machine; the coordinator divides them among ranks
  double agent_grace_seconds = 30;
  // NAME=value, for trainers only.
  std::vector<std::string> trainer_environment;
};

class RunManager {
 public:
  // `send` takes messages for the coordinator; it must not call back.
  RunManager(AgentOptions options, AgentMetrics& metrics,
             std::function<void(v1::AgentMessage)> send);
  // Kills what still runs.
  ~RunManager();

  void Handle(const v1::CoordinatorMessage& message);

  // What the link to the coordinator says by itself.
  std::vector<v1::RunId> Running(bool ended) const;
  int highest_attempt() const;
  v1::AgentHeartbeat Heartbeat();
  std::vector<v1::AgentMessage> ToldFirst() const;
  std::vector<v1::AgentMessage> ToldLast() const;

  // For the trainer service. The command writer is used until Detach.
  using WriteCommand = std::function<void(const v1::TrainerCommand&)>;
  absl::StatusOr<v1::TrainerAssignment> Attach(const v1::TrainerHello& hello, WriteCommand write);
  void Detach(const v1::TrainerHello& hello);
  void Receive(const v1::TrainerHello& hello, const v1::TrainerMessage& message);

  // SIGTERM to all trainers, SIGKILL after `grace`; no run starts after it. Returns when none is
  // left.
  void StopAll(absl::Duration grace);

 private:
  struct Trainer {
    std::unique_ptr<TrainerProcess> process;
    WriteCommand write;
  };
  // Of an answer to the coordinator that takes long.
  struct Preparation {
    std::thread thread;
    bool done = false;
  };
  using Trainers = std::map<int, Trainer>;  // by rank

  // Steps the core with the event and with those that its effects bring about. Under the lock.
  void Apply(AgentEvent event);
  void Do(StartTrainer& effect, std::vector<AgentEvent>& more);
  void Do(SignalTrainer& effect, std::vector<AgentEvent>&);
  void Do(TellTrainer& effect, std::vector<AgentEvent>&);
  void Do(TellCoordinator& effect, std::vector<AgentEvent>&);
  void Do(ReadData& effect, std::vector<AgentEvent>&);
  void Do(ForgetRun& effect, std::vector<AgentEvent>&);

  // Answers once the ranks have been looked at, which may take a second.
  void Inspect(const v1::InspectRun& request);
  std::string PageOf(const RunKey& key, int rank) const;

  absl::StatusOr<std::unique_ptr<TrainerProcess>> Spawn(const RunKey& key, int rank);
  v1::AgentMessage Prepare(const v1::PrepareData& request) const;
  void SendLine(const RunKey& key, int rank, const std::string& line);
  void Measure(const RunKey& key, int rank, const v1::TrainerMessage& message);
  void Housekeeping();
  Trainer* FindTrainer(const v1::TrainerHello& hello);
  RankLabels LabelsOf(const RunKey& key, int rank) const;

  const AgentOptions options_;
  AgentMetrics& metrics_;
  std::function<void(v1::AgentMessage)> send_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  AgentState state_;
  std::map<RunKey, Trainers> trainers_;
  RankWatch watch_;
  std::vector<Trainers> ended_;  // their threads are still to be joined, outside the lock
  std::list<Preparation> preparations_;
  bool stopping_ = false;
  std::thread housekeeper_;
};

}  // namespace tercio
