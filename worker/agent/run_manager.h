// The runs of a node: one run is this node's part of an attempt. Starts, watches and stops its
// trainers, hands them their assignment, and tells the coordinator what becomes of them.
//
// Threads: all methods from any thread. Callbacks into it come from trainers' watchers, from the
// trainer service and from the link to the coordinator.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/tercio/v1/node_service.pb.h"
#include "proto/tercio/v1/trainer.pb.h"
#include "worker/agent/agent_metrics.h"
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
};

class RunManager {
 public:
  // `send` takes messages for the coordinator.
  RunManager(AgentOptions options, AgentMetrics& metrics,
             std::function<void(v1::AgentMessage)> send);
  // Kills what still runs.
  ~RunManager();

  void Handle(const v1::CoordinatorMessage& message);

  // Runs with live trainers.
  std::vector<v1::RunId> Running() const;
  int highest_attempt() const;

  // For the trainer service. The command writer is used until Detach.
  using WriteCommand = std::function<void(const v1::TrainerCommand&)>;
  absl::StatusOr<v1::TrainerAssignment> Attach(const v1::TrainerHello& hello, WriteCommand write);
  void Detach(const v1::TrainerHello& hello);
  void Receive(const v1::TrainerHello& hello, const v1::TrainerMessage& message);

  // SIGTERM to all trainers, SIGKILL after `grace`; returns when none is left.
  void StopAll(absl::Duration grace);

 private:
  struct Rank {
    v1::RankPlan plan;
    std::unique_ptr<TrainerProcess> process;
    WriteCommand write;
    std::string failure;  // the trainer's own word
    bool permanent = false;
    bool ended = false;
    int64_t last_step = 0;
  };
  struct Run {
    v1::StartRun start;
    std::map<int, Rank> ranks;
    absl::Time kill_at = absl::InfiniteFuture();
    bool Ended() const;
  };
  using RunKey = std::pair<std::string, int>;  // job, attempt

  void Prepare(const v1::PrepareData& request);
  void Start(const v1::StartRun& request);
  void Stop(const v1::StopRun& request);
  void Save(const v1::SaveCheckpoint& request);
  absl::Status StartRank(const RunKey& key, Run& run, int rank);
  void RankEnded(const RunKey& key, int rank, const ProcessExit& exit);
  void SendLine(const RunKey& key, int rank, const std::string& line);
  void Housekeeping();
  RankLabels LabelsOf(const Run& run, int rank) const;
  Run* Find(const v1::RunId& id);

  const AgentOptions options_;
  AgentMetrics& metrics_;
  std::function<void(v1::AgentMessage)> send_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<RunKey, std::unique_ptr<Run>> runs_;
  int highest_attempt_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> preparations_;
  std::thread housekeeper_;
};

}  // namespace tercio
