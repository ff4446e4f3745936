// The deciding part of the coordinator: pure. A step takes the state and one event, changes the
// state, and says what must be made durable and what must be done. No clock, threads, files or
// network in here: events carry the time and every random value.
//
// The life of an attempt:
//   queued -> preparing -> starting -> running -> (all ranks exit 0) succeeded
//   any of them -> stopping -> backing_off -> queued      a rank or node was lost and the budget
//   allows
//                           -> queued                     moved: it has saved and continues
//                           elsewhere
//                           -> failed | cancelled
// phases.h has each change.
// An attempt is fenced by (job, attempt): events of an older one change nothing. What nodes report
// is fenced by (spool, sequence): what is in the store changes nothing a second time. Both together
// make the state a function of what is durable: agents may forget what they have been told is kept.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/core/diagnosis.h"
#include "coordinator/core/hang_stacks.h"
#include "coordinator/core/phases.h"
#include "coordinator/core/placement.h"
#include "coordinator/core/scrub_schedule.h"
#include "coordinator/core/snapshots.h"
#include "coordinator/core/stragglers.h"
#include "coordinator/core/watchdog.h"
#include "plan/plan_builder.h"
#include "proto/tercio/v1/events.pb.h"
#include "proto/tercio/v1/figures.pb.h"
#include "proto/tercio/v1/job.pb.h"
#include "proto/tercio/v1/node_service.pb.h"
#include "proto/tercio/v1/state.pb.h"

namespace tercio::coordinator {

// How the ranks of an attempt progress. A restarted coordinator learns it again.
struct RunHealthState {
  RunWatchdog watchdog;
  std::optional<StragglerDetector> stragglers;
  double asked_at = 0;  // all ranks were asked where they are; 0: they were not
  std::set<std::string> answered;
  std::map<int, v1::RankPosition> positions;  // without the stacks
  HangStacks stacks;
  std::map<int, v1::RankFigures> figures;  // by rank, as last reported
  uint64_t figures_heard = 0;              // incremented at each change of them
  bool noted_lost_lines = false;           // that lines of logs are missing
  // By node, while any rank of the run loads its state.
  struct Loading {
    int64_t bytes = 0;
    int64_t total_bytes = 0;
    bool ended = false;  // all ranks there have loaded
  };
  std::map<std::string, Loading> loading;
  // The sum over all nodes; nullopt: no rank loads.
  std::optional<Loading> LoadingOfAll() const;
};

// The fault that ended an attempt, for the counts of restarts.
enum class FaultCause {
  kCrash,     // a rank ended by a fault of its own
  kKilled,    // a rank was killed from outside
  kNodeLost,  // or it has lost its ranks
  kDevice,    // a GPU failed
  kHang,
  kReplicasDiffer,
  kRollBack,  // a spike: the job goes over its data
  kOther,     // also: not known, since the coordinator was restarted in between
};
inline constexpr int kFaultCauses = static_cast<int>(FaultCause::kOther) + 1;
// "crash", "killed", "node_lost", ...
const char* NameOf(FaultCause cause);

// Why a checkpoint was given up.
enum class SaveFailure {
  kInterrupted,  // the attempt is over, a rank has gone, or the next save has begun
  kSilence,      // not all ranks have sent their part
  kTimeout,      // it has taken longer than checkpoint.timeout
  kDiskFull,
  kDamaged,      // what came is not what was sent
  kUnreachable,  // a rank could not reach the coordinator
  kSkipped,      // the save before was still under way when this one was due
  kOther,
};
inline constexpr int kSaveFailures = static_cast<int>(SaveFailure::kOther) + 1;
// "interrupted", "silence", ...
const char* NameOf(SaveFailure failure);

// Nodes and devices that a job avoids as long as there are others.
struct Avoided {
  std::set<std::string> nodes;                    // that were too slow for it
  std::set<std::pair<std::string, int>> devices;  // whose GPU has failed under it
  bool empty() const { return nodes.empty() && devices.empty(); }
};

struct JobState {
  v1::JobRecord record;
  // The plan of the newest attempt that has one; null before. Durable, beside the record.
  std::shared_ptr<const v1::Plan> plan;
  // Placement of the present attempt; without ranks when it holds no devices. Durable, beside the
  // record.
  PlacementPtr placement = NoPlacement();
  // ---- not durable ----
  double room_since = 0;         // devices for all ranks of a shrunk job are free; 0: they are not
  bool tried_to_shrink = false;  // unsuccessfully, with the devices free now
  double too_large_since = 0;    // for all nodes that are known; 0: it is not
  bool may_be_skipped = false;   // those behind it in the queue
  bool searching = false;        // for the checkpoint of the present attempt
  double searching_since = 0;    // when that search began
  double unanswered_since = 0;   // its answer is overdue, or nearly; 0: it is not
  double search_again_at = 0;    // the last one failed in a way that may pass; 0: it did not
  int searches = 0;              // that have failed in a row
  int64_t suspect_step = 0;      // the last attempt started from its checkpoint and made no step
  bool verifying = false;        // one of its checkpoints:
  int64_t verifying_step = 0;
  int verifying_attempt = 0;  // whose it was when that began
  // The last step whose save a rank has given up, and the attempt of both: it sends no part of it.
  int64_t given_up_step = 0;
  int given_up_attempt = 0;
  bool killed = false;  // a phase of stopping took too long: SIGKILL was asked for
  std::shared_ptr<RunHealthState> health;  // health of the present attempt; null: no report yet
  Avoided avoided;
  // For each rank of the present attempt: the node whose memory holds its state; empty: it starts
  // from a checkpoint.
  std::vector<std::string> snapshot_sources;
  // The ledger's work up to this step is kept, whatever the attempt that prepares starts from.
  int64_t kept_step = 0;
  FaultCause cause = FaultCause::kOther;  // cause of the last fault
};

struct NodeState {
  v1::NodeRecord record;
  // ---- not durable ----
  v1::AgentHello hello;
  bool connected = false;
  bool lost = true;  // no heartbeat for a lease
  double last_heard = 0;
  HeldSnapshots snapshots;  // as reported since its hello
};

// All jobs by id, also those that have ended, which may be many: those that have not are at hand,
// so that what is done with every tick and every node does not grow with all jobs there ever were.
class JobTable {
 public:
  using Map = std::map<std::string, JobState>;

  // To be called when a job was read from the store, and with each change of its phase.
  void Sort(const JobState& job);

  // Those that have not ended, by id. Valid until one of them is erased.
  std::vector<JobState*> Active();
  std::vector<const JobState*> Active() const;
  // Ended jobs: their number by phase, those that ended at or after `time`, and the ids of those
  // that ended before it. The last leaves out jobs whose end time is unknown.
  const std::map<v1::JobPhase, int>& ended() const { return ended_; }
  std::vector<const JobState*> EndedSince(double time) const;
  std::vector<std::string> EndedBefore(double time) const;

  // ---- as of a map ----
  Map::iterator begin() { return ++walks_, jobs_.begin(); }
  Map::const_iterator begin() const { return ++walks_, jobs_.begin(); }
  Map::iterator end() { return jobs_.end(); }
  Map::const_iterator end() const { return jobs_.end(); }
  Map::iterator find(const std::string& id) { return jobs_.find(id); }
  Map::const_iterator find(const std::string& id) const { return jobs_.find(id); }
  bool contains(const std::string& id) const { return jobs_.contains(id); }
  JobState& at(const std::string& id) { return jobs_.at(id); }
  const JobState& at(const std::string& id) const { return jobs_.at(id); }
  JobState& operator[](const std::string& id) { return jobs_[id]; }
  size_t size() const { return jobs_.size(); }
  void erase(Map::iterator job);

  // How often all jobs were iterated over: for tests.
  int64_t walks() const { return walks_; }

 private:
  using End = std::pair<double, std::string>;  // when, id
  struct Ended {
    double at = 0;
    v1::JobPhase phase = v1::JOB_PHASE_UNSPECIFIED;
  };
  void Forget(const std::string& id);

  Map jobs_;
  std::set<std::string> active_;
  std::map<v1::JobPhase, int> ended_;
  std::map<std::string, Ended> ends_;
  std::set<End> by_end_;
  mutable int64_t walks_ = 0;
};

struct State {
  JobTable jobs;
  std::map<std::string, NodeState> nodes;
  int64_t next_number = 1;
  ScrubSchedule scrubs;  // not durable
};

// The contents of a store. Restore, at `now`: nodes that should be running something have one lease
// to come back.
struct Stored {
  std::vector<v1::JobRecord> jobs;
  std::map<std::string, v1::Plan> plans;            // by job
  std::map<std::string, v1::RankSlots> placements;  // by job
  std::vector<v1::NodeRecord> nodes;
};
State Restore(Stored stored, double now);

// Ranks in a row that are on nodes of one kind.
struct KindShare {
  int ranks = 0;
  int ranks_per_node = 0;  // the most of a node
  double cores = 1;
  std::string gpu;
  v1::MachineFigures figures;
};

// A rank's share of its node, the least over all ranks of a job.
struct RankShare {
  int threads = 1;
  double cores = 1;  // less than one where ranks share them
  int64_t memory_bytes = int64_t{1} << 62;
  bool shares_gpus = false;    // several ranks may be on one GPU
  std::string gpu;             // model of one of them; empty: none
  v1::MachineFigures figures;  // of the slowest node that was measured; empty: none was
  // In the order of the ranks, where nodes have GPUs of different models, or were all measured and
  // differ in speed; else empty.
  std::vector<KindShare> kinds;
};

// Maximum rollbacks per job; later spikes are only reported.
inline constexpr int kMostRollBacks = 3;

// Fixed for the life of a coordinator.
struct Settings {
  double heartbeat_interval = 5;
  double node_lease = 15;       // a node without a heartbeat for this long is lost
  double node_memory = 86'400;  // a lost node is forgotten after this long
  double stop_grace = 5;        // between SIGTERM and SIGKILL
  double save_timeout = 120;    // for the last checkpoint of a cancelled or moved job
  double first_backoff = 1;     // doubles with every restart
  double longest_backoff = 60;
  double budget_window = 3600;  // a restart counts for this long, then a commit makes it good
  int crash_loop = 3;           // faults in a row at the same step: no restart helps
  int quarantine_faults = 3;    // faults of a node within the window
  double quarantine_window = 600;
  double grow_delay = 10;  // room for all ranks must last this long
  double pass_delay = 60;  // a job that no known nodes could hold blocks others for this long
  double checkpoint_patience = 600;  // for a store that cannot be read at the moment
  double scrub_interval = 86'400;  // between two verifications of a checkpoint; 0: only on request
  double job_retention = 0;        // a job that ended this long ago is forgotten; 0: none
  bool allow_drills = false;       // faults on purpose; asked for by the service
  // Layout and plan for these slots; INVALID_ARGUMENT | RESOURCE_EXHAUSTED when impossible.
  std::function<absl::StatusOr<v1::Plan>(const v1::JobSpec&, const std::vector<plan::DeviceSlot>&,
                                         const RankShare&)>
      make_plan;
  // The layout of an elastic job for as many ranks as possible, at least `least` and at most
  // `most`. The ranks are in *ranks. NOT_FOUND when there is none.
  std::function<absl::StatusOr<v1::ParallelismSpec>(const v1::JobSpec&, int least, int most,
                                                    const RankShare&, int* ranks)>
      smaller_layout;
};

// ---- events ----

struct Submitted {
  std::string job_id;
  v1::JobSpec spec;
  std::string owner;       // empty: without TLS
  std::string request_id;  // of a client that repeats the request until it is answered; empty: none
};
struct CancelRequested {
  std::string job_id;
  bool save_checkpoint = false;
  std::string reason;
};
struct ResumeRequested {
  std::string job_id;
  v1::JobSpec spec;
  bool accept_data_change = false;
  bool accept_change = false;        // changes of model and seed
  std::optional<int64_t> from_step;  // start from this step's checkpoint; 0: from the beginning
};
// At the end of the running step.
struct SaveRequested {
  std::string job_id;
};
// A job that has ended goes with its history.
struct DeleteRequested {
  std::string job_id;
  bool checkpoints = false;  // go, too
};
enum class NodeChange { kDrain, kUndrain, kRelease };
struct NodeChangeRequested {
  std::string node;
  NodeChange change = NodeChange::kDrain;
};
// Measured on the node, and checked by the caller; nullopt: what was recorded is removed.
struct FiguresRecorded {
  std::string node;
  std::optional<v1::MachineFigures> figures;
};
// Injects a fault into a running job. Faults of checkpoints are left to the caller.
struct DrillRequested {
  std::string job_id;
  v1::InjectFault fault;
  bool on_node = true;  // the node does it
};
struct NodeAttached {
  v1::AgentHello hello;
};
struct NodeDetached {
  std::string node;
};
struct NodeSaid {
  std::string node;
  v1::AgentMessage message;
};
// Why a checkpoint cannot be started from. Step 0: it is about all of them.
struct CheckpointFinding {
  int64_t step = 0;
  std::string problem;
  bool damaged = false;  // proven, as opposed to a transient error
};
// The answer to FindCheckpoint; step 0: none.
struct CheckpointFound {
  v1::RunId run;
  int64_t step = 0;
  std::string path;
  int64_t bytes = 0;
  // The findings about newer ones. The search ends at one that is not damaged but cannot
  // be read: it may be possible later.
  std::vector<CheckpointFinding> findings;
  // All that are on the disk, in the order of their commits: also those that a coordinator
  // committed and died before it could record it.
  std::vector<v1::CheckpointRecord> there;
};
struct CheckpointCommitted {
  v1::RunId run;
  int64_t step = 0;
  std::string path;
  int64_t bytes = 0;
  double seconds = 0;  // since its first byte came; 0: unknown
  std::string manifest_digest;
  bool verified = false;                      // every byte was read back
  int32_t numerics = 0;                       // its manifest's (plan/numerics.h); 0: not known
  std::optional<uint64_t> state_digest = {};  // its manifest's (plan/state_digest.h)
};
// The answer to VerifyCheckpoint.
struct CheckpointVerified {
  std::string job_id;
  int64_t step = 0;
  std::string problem;   // empty: every byte is right
  bool damaged = false;  // proven
};
// It is not on the disk any more.
struct CheckpointRemoved {
  std::string job_id;
  int64_t step = 0;
  int32_t attempt = 0;  // RemoveCheckpoint; 0: of any attempt
};
// Steps that a checkpoint holds, delivered before it becomes visible: whatever happens to the node
// that reported them, no attempt starts beyond the history.
struct StepsDone {
  v1::RunId run;
  std::vector<v1::StepRecord> steps;
};
struct CheckpointFailed {
  v1::RunId run;
  int64_t step = 0;
  std::string error;
  SaveFailure reason = SaveFailure::kOther;
  int rank = -1;  // which could not write its part, for `error`; -1: no one rank is the reason
};
struct Tick {};

struct Event {
  double now = 0;     // seconds since 1970, never less than before
  std::string token;  // fresh randomness, used when the event starts an attempt
  std::variant<Submitted, CancelRequested, ResumeRequested, SaveRequested, DeleteRequested,
               NodeChangeRequested, FiguresRecorded, DrillRequested, NodeAttached, NodeDetached,
               NodeSaid, CheckpointFound, CheckpointCommitted, CheckpointVerified,
               CheckpointRemoved, StepsDone, CheckpointFailed, Tick>
      body;
};

// ---- effects ----

struct SendToNode {
  std::string node;
  v1::CoordinatorMessage message;
};
// The newest checkpoint from which the attempt can start. Damage is proven before one is passed
// over.
struct FindCheckpoint {
  v1::RunId run;
  v1::CheckpointSpec spec;                  // where they are
  std::vector<v1::CheckpointRecord> known;  // that count, newest first
  std::map<int32_t, int64_t> resume_steps;  // JobRecord
  std::optional<int64_t> only;              // this one or none
  int64_t suspect_step = 0;                 // every byte of this one is verified first
};
// Every byte of one.
struct VerifyCheckpointBytes {
  std::string job_id;
  v1::CheckpointSpec spec;
  int64_t step = 0;
};
struct RemoveAllCheckpoints {
  std::string job_id;
  v1::CheckpointSpec spec;
};
struct RemoveCheckpoint {
  std::string job_id;
  v1::CheckpointSpec spec;
  int64_t step = 0;
  int32_t attempt = 0;  // that saved it: one that a later attempt has saved since stays
};

// The end of a save, by its commit or not.
struct SaveEnded {
  std::string job_id;
  std::optional<SaveFailure> failure;  // absent: committed
  double seconds = 0;                  // duration of a commit, from its first byte; 0: unknown
};

struct Effects {
  // To be made durable, before anything below leaves.
  std::set<std::string> changed_jobs;
  std::set<std::string> changed_plans;                        // jobs whose plan is another one
  std::set<std::string> changed_placements;                   // jobs whose placement is another one
  std::set<std::string> changed_nodes;                        // also those that are forgotten
  std::vector<std::string> deleted_jobs;                      // with all that belongs to them
  std::vector<std::pair<std::string, v1::StepRecord>> steps;  // job, record
  std::vector<v1::JobEvent> events;  // sequence and time are set by the store
  std::vector<std::pair<std::string, v1::LogLine>> logs;
  std::vector<std::pair<std::string, v1::RankTrace>> traces;
  std::vector<std::pair<v1::RunId, v1::ExitRecord>> exits;
  std::vector<std::pair<std::string, std::string>> requests;  // id of a request, the job it made
  // To be done after that.
  std::vector<SendToNode> messages;
  std::map<std::string, uint64_t> acknowledged;  // node -> up to this sequence
  std::vector<FindCheckpoint> searches;
  std::vector<VerifyCheckpointBytes> verifications;
  std::vector<RemoveCheckpoint> removals;
  std::vector<RemoveAllCheckpoints> job_removals;
  // Nodes that count as lost: their streams are closed, so that they reconnect with a hello.
  std::vector<std::string> disconnected;
  // To be counted.
  std::vector<std::pair<std::string, FaultCause>> restarts;  // job, why
  std::vector<SaveEnded> saves;
  int fenced = 0;  // messages about attempts that are over
  // The answer to a request that the event stands for (submit, cancel, resume, change of a node).
  // INTERNAL: SetPhase has refused a change.
  absl::Status answer;
};

Effects Step(State& state, const Event& event, const Settings& settings);

// Whether a rank of the job can be harmed. FAILED_PRECONDITION (not running) | INVALID_ARGUMENT.
absl::Status CheckDrill(const v1::JobRecord& record, const Placement& placement, int rank);

// Whether a step is part of the job's history: no later attempt has started before it.
bool StepCounts(const v1::JobRecord& record, const v1::StepRecord& step);

// How many of the last step durations are kept.
inline constexpr int kRecentSteps = 32;

// Seconds until the job's last step: those that are left, at the median of the last steps'
// durations. One slow step, or a few, change little; evaluations and checkpoints are not counted.
// nullopt: no step was made, or the job has ended.
std::optional<double> SecondsLeft(const v1::JobRecord& record);

// The specification of the present attempt: that of the job, or with fewer ranks, or without
// another rollback.
v1::JobSpec PresentSpec(const v1::JobRecord& record);

// Whether a node has the kind of device that a job asks for.
bool HasDevicesFor(const NodeState& node, const v1::JobSpec& spec);

// Bytes that one rank may use on its device, with `ranks` of them on the node: a share of the
// node's memory, or of a GPU's. kUnknownMemory where the node has not said.
inline constexpr int64_t kUnknownMemory = int64_t{1} << 62;
int64_t MemoryOfRank(const v1::AgentHello& hello, int ranks);
// Whether the node offers more slots than it has GPUs.
bool SharesGpus(const v1::AgentHello& hello);

// The fault of the slot's GPU, for which it gets no ranks. Empty: there is none.
std::string FaultOfSlot(const NodeState& node, int slot);

// Devices that no job holds and that are not faulty, of a node that takes ranks; 0 for others.
int FreeSlots(const State& state, const std::string& node);
// Free slots of all nodes.
std::map<std::string, int> FreeSlots(const State& state);

// The attempt that the message is about: `run` of its body. Null: it is about none, or several.
const v1::RunId* RunOf(const v1::AgentMessage& message);

// "ready", "draining", "drained", "quarantined"; for a node without heartbeats: "left" when its
// agent announced it, "drained" when it was drained, else "lost".
std::string NodeStateName(const State& state, const std::string& node);

}  // namespace tercio::coordinator
