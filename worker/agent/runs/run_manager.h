// The trainers of a node: carries out the decisions of the agent's core (core/agent_core.h) with
// real processes, and passes their messages to the core and the coordinator. State that must
// survive this process is in the store before it has an effect. The ranks' logs (rank_logs.h),
// their figures (rank_figures.h) and drills (drills.h) have classes of their own.
//
// Threads: all methods from any thread. Callbacks into it come from trainers' watchers, from the
// trainer service and from the link to the coordinator.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/gpus/gpus.h"
#include "common/mutex.h"
#include "proto/tercio/v1/node_service.pb.h"
#include "proto/tercio/v1/trainer.pb.h"
#include "worker/agent/agent_metrics.h"
#include "worker/agent/core/agent_core.h"
#include "worker/agent/gpus/gpu_monitor.h"
#include "worker/agent/link/agent_store.h"
#include "worker/agent/runs/allowed_paths.h"
#include "worker/agent/runs/data_preparer.h"
#include "worker/agent/runs/drills.h"
#include "worker/agent/runs/rank_figures.h"
#include "worker/agent/runs/rank_inspector.h"
#include "worker/agent/runs/rank_logs.h"
#include "worker/agent/runs/trainer_process.h"
#include "worker/agent/runs/trainer_user.h"

namespace tercio::agent {

struct AgentOptions {
  std::string node;
  // HOST:PORT at which this node, including its trainers, reaches it.
  std::string coordinator = "127.0.0.1:7077";
  std::string state_dir;
  std::string log_dir;                           // for trainers' logs, a directory for each job
  std::string scratch_dir;                       // for what jobs offload to disk; it exists
  int64_t scratch_total = 0;                     // limit for all of that; 0: none
  int64_t log_bytes = int64_t{16} << 20;         // size at which a trainer's log is rotated
  int64_t log_quota = int64_t{1} << 30;          // limit for all logs of a job
  int64_t log_total = int64_t{16} << 30;         // limit for the logs of all jobs
  int64_t data_cache_total = int64_t{64} << 30;  // limit for tokenised texts; those in use stay
  int64_t data_memory = 0;   // limit for a process that reads the data of a job; 0: none
  double log_rate = 1000;    // lines per second of a rank that are sent to the coordinator
  std::string runtime_dir;   // holds the trainer service's socket and the progress pages
  std::string socket;        // socket of the trainer service
  std::string trainer;       // program
  std::string data_address;  // for collectives
  int slots = 1;
  v1::DeviceKind device_kind = v1::DEVICE_KIND_CPU;  // that the trainer computes on
  Gpus gpus;
  std::string nccl;           // version that the trainer is linked with; empty: none, or unknown
  std::string gpus_unusable;  // why the trainer cannot use any of them; empty: it can
  // Recent reports of the driver about the GPU at this index of `gpus.list`; empty if there are no
  // GPUs. May take seconds.
  std::function<GpuMonitor::Trouble(int gpu)> gpu_trouble;
  // Share of the last seconds with a kernel running, for each of `gpus.list`; empty if there are no
  // GPUs.
  std::function<std::vector<std::optional<double>>()> gpu_utilization;
  int cores = 1;  // cores of the machine; the coordinator divides them among ranks
  double agent_grace_seconds = 30;
  std::optional<TrainerUser> trainer_user;  // nullopt: the agent's
  AllowedPaths allowed;                     // paths that jobs may name
  // NAME=value, for trainers only.
  std::vector<std::string> trainer_environment;
};

class RunManager {
 public:
  // Sends a transient message to the coordinator; called from any thread, must not call back.
  using Say = std::function<void(v1::AgentMessage)>;
  // The store and the metrics must outlive it. Messages for the coordinator go into the store.
  RunManager(AgentOptions options, AgentMetrics& metrics, AgentStore& store, Say say);
  // Kills all running trainers, unless Leave was called.
  ~RunManager();

  // Takes over the runs that a previous agent has kept. Called once, before trainers can attach.
  void Restore() TERCIO_EXCLUDES(mutex_);

  void Handle(const v1::CoordinatorMessage& message) TERCIO_EXCLUDES(mutex_);

  // For the link to the coordinator.
  std::vector<v1::RunId> Running(EndedRuns ended) const TERCIO_EXCLUDES(mutex_);
  int highest_attempt() const TERCIO_EXCLUDES(mutex_);
  // Whether the attempt runs here, and the token is its token.
  bool TakesPart(const v1::RunId& run, const std::string& token) const TERCIO_EXCLUDES(mutex_);
  v1::AgentHeartbeat Heartbeat() TERCIO_EXCLUDES(mutex_);
  // Indices into `AgentOptions::gpus.list` on which ranks live.
  std::set<int> GpusInUse() const TERCIO_EXCLUDES(mutex_);

  // Incremented on every pass of the thread that drives timers (several times per second). Read by
  // the watchdog.
  uint64_t rounds() const { return rounds_; }

  // For the trainer service. The command writer is used until Detach; a later Attach of the same
  // rank replaces it.
  using WriteCommand = std::function<void(const v1::TrainerCommand&)>;
  struct Attachment {
    v1::TrainerAssignment assignment;
    uint64_t received = 0;                    // the last message of this trainer that is kept
    std::vector<v1::TrainerCommand> waiting;  // to be written after the assignment
    uint64_t id = 0;
  };
  absl::StatusOr<Attachment> Attach(const v1::TrainerHello& hello, WriteCommand write)
      TERCIO_EXCLUDES(mutex_);
  void Detach(const v1::TrainerHello& hello, uint64_t attachment) TERCIO_EXCLUDES(mutex_);
  // The message is kept when this returns; received twice, it counts once.
  void Receive(const v1::TrainerHello& hello, const v1::TrainerMessage& message)
      TERCIO_EXCLUDES(mutex_);

  // No run starts after this.
  void StopAccepting() TERCIO_EXCLUDES(mutex_);
  // Returns when no run is left, after `patience`, or when `give_up` returns true.
  void WaitForEnds(absl::Duration patience, const std::function<bool()>& give_up)
      TERCIO_EXCLUDES(mutex_);
  // SIGTERM to all trainers, SIGKILL after `grace`; no run starts after this. Returns when none is
  // left.
  void StopAll(absl::Duration grace) TERCIO_EXCLUDES(mutex_);
  // Stops watching and leaves all trainers running, for the next agent. Only destruction may
  // follow.
  void Leave() TERCIO_EXCLUDES(mutex_);

 private:
  struct Trainer {
    std::unique_ptr<TrainerProcess> process;
    WriteCommand write;
    std::vector<v1::TrainerCommand> waiting;  // to be sent at the next attachment
    uint64_t attachment = 0;
    uint64_t received = 0;
  };
  // An answer to the coordinator that takes long to prepare.
  struct Preparation {
    std::thread thread;
    bool done = false;
  };
  using Trainers = std::map<int, Trainer>;  // by rank

  // Steps the core with the event and with those that its effects produce.
  // `changes` are committed together with those of the event itself.
  void Apply(AgentEvent event, AgentChanges changes = {}) TERCIO_REQUIRES(mutex_);
  void Keep(const std::vector<AgentEffect>& effects, AgentChanges changes) TERCIO_REQUIRES(mutex_);
  void Do(KeepRun&, std::vector<AgentEvent>&) TERCIO_REQUIRES(mutex_) {}  // by Keep
  void Do(StartTrainer& effect, std::vector<AgentEvent>& more) TERCIO_REQUIRES(mutex_);
  void Do(AdoptTrainer& effect, std::vector<AgentEvent>& more) TERCIO_REQUIRES(mutex_);
  void Do(SignalTrainer& effect, std::vector<AgentEvent>&) TERCIO_REQUIRES(mutex_);
  void Do(TellTrainer& effect, std::vector<AgentEvent>&) TERCIO_REQUIRES(mutex_);
  void Do(SendToCoordinator&, std::vector<AgentEvent>&) TERCIO_REQUIRES(mutex_) {}  // by Keep
  void Do(ReadData& effect, std::vector<AgentEvent>&) TERCIO_REQUIRES(mutex_);
  void Do(ForgetRun& effect, std::vector<AgentEvent>&) TERCIO_REQUIRES(mutex_);

  // Answers after looking at the ranks, which may take a second.
  void Inspect(const v1::InspectRun& request) TERCIO_REQUIRES(mutex_);
  void Inject(const v1::InjectFault& fault) TERCIO_REQUIRES(mutex_);
  void SlowDown() TERCIO_REQUIRES(mutex_);

  absl::StatusOr<std::unique_ptr<TrainerProcess>> Spawn(const RunKey& key, int rank)
      TERCIO_REQUIRES(mutex_);
  // Index of the rank's GPU in `AgentOptions::gpus.list`; -1: it is on none, or not here.
  int GpuOf(const RunKey& key, int rank) const TERCIO_REQUIRES(mutex_);
  std::map<int, double> UtilizationOfRanks(
      const RunKey& key, const std::vector<std::optional<double>>& utilization) const
      TERCIO_REQUIRES(mutex_);
  void ExplainByGpu(TrainerEnded* event) const TERCIO_EXCLUDES(mutex_);
  std::string PagePath(const RunKey& key, int rank) const;
  // Both are called by the thread that watches the process, and share its stream.
  using LogStream = std::shared_ptr<RankLogs::Stream>;
  static TrainerProcess::OnLines LineSender(LogStream stream);
  TrainerProcess::OnExit ExitHandler(const RunKey& key, int rank, LogStream stream);
  void ReceiveUntold(const RunKey& key, int rank) TERCIO_REQUIRES(mutex_);
  void AssignSnapshots(const v1::StartRun& start, int rank, v1::TrainerAssignment* out) const;
  void Housekeeping() TERCIO_EXCLUDES(mutex_);
  // Null: no trainer of this rank was started or adopted here.
  Trainer* FindTrainer(const RunKey& key, int rank) TERCIO_REQUIRES(mutex_);

  const AgentOptions options_;
  AgentMetrics& metrics_;
  AgentStore& store_;
  const Say say_;
  const RankLogs logs_;
  DataPreparer preparer_;
  mutable Mutex mutex_;
  ConditionVariable changed_;
  AgentState state_ TERCIO_GUARDED_BY(mutex_);
  std::map<RunKey, Trainers> trainers_ TERCIO_GUARDED_BY(mutex_);
  RankWatch watch_ TERCIO_GUARDED_BY(mutex_);
  RankFigures figures_ TERCIO_GUARDED_BY(mutex_);
  Drills drills_ TERCIO_GUARDED_BY(mutex_);
  // Their threads are still to be joined, outside the lock.
  std::vector<Trainers> ended_ TERCIO_GUARDED_BY(mutex_);
  std::list<Preparation> preparations_ TERCIO_GUARDED_BY(mutex_);
  uint64_t attachments_ TERCIO_GUARDED_BY(mutex_) = 0;
  bool stopping_ TERCIO_GUARDED_BY(mutex_) = false;
  bool left_ TERCIO_GUARDED_BY(mutex_) = false;
  std::atomic<uint64_t> rounds_ = 0;
  std::thread housekeeper_;
};

}  // namespace tercio::agent
