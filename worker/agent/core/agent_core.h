// The deciding part of the agent: pure. A step takes the state and one event, changes the state,
// and returns what must be done. No clock, threads, processes, files or network in here: events
// carry the time.
//
// A run is this node's part of an attempt. Its ranks go waiting -> live -> ended. They wait while
// trainers of an older attempt of the same job still live here: two attempts never run side by
// side. When its last rank has ended a run moves to a short memory of ended runs. Ranks whose
// scratch files do not fit beside those of live ranks end without having been started.
//
// State that must survive the agent is kept by effects that come before the effects which it
// explains, and restored by one event, Restored: the state is a function of what was kept. Trainers
// that outlived the agent are adopted then.
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "proto/tercio/v1/node_service.pb.h"
#include "proto/tercio/v1/trainer.pb.h"

namespace tercio::agent {

using RunKey = std::pair<std::string, int>;  // job, attempt

struct RankState {
  enum class Life { kWaiting, kLive, kEnded };
  v1::RankPlan plan;
  Life life = Life::kWaiting;
  v1::TrainerPhase phase = v1::TRAINER_PHASE_UNSPECIFIED;
  v1::TrainerFailure failure;  // as the trainer reported it
  int64_t last_step = 0;
  v1::RankFigures figures;  // the newest; has no steps before the trainer has reported any
  bool has_exited = false;  // false for a rank that ended before it was started
  v1::ExitRecord exit;      // valid when has_exited
};

struct RunState {
  v1::StartRun start;
  std::map<int, RankState> ranks;
  // Seconds; what lives then is killed.
  double kill_at = std::numeric_limits<double>::infinity();
  bool stopping = false;
  int64_t unanswered_save = 0;  // step of the last one that was reported to the coordinator

  bool Ended() const;
};

struct EndedRun {
  RunKey run;
  std::vector<v1::ExitRecord> exits;
};

struct AgentState {
  std::map<RunKey, RunState> runs;
  std::deque<EndedRun> ended;  // the latest ones, oldest first
  int highest_attempt = 0;
  bool leaving = false;  // no further run starts
  // The most that all ranks may take in the scratch directory together; 0: no limit. Constant.
  int64_t scratch_total = 0;
};

// ---- events ----

// The records of a previous agent; the first event, if any.
struct Restored {
  std::map<RunKey, RunState> runs;
  std::deque<EndedRun> ended;
  int highest_attempt = 0;
};
struct CoordinatorSaid {
  v1::CoordinatorMessage message;
};
struct TrainerSaid {
  RunKey run;
  int rank = 0;
  v1::TrainerMessage message;
};
struct StartFailed {
  RunKey run;
  int rank = 0;
  std::string error;
};
struct TrainerEnded {
  RunKey run;
  int rank = 0;
  int exit_code = 0;  // valid when signal == 0
  int signal = 0;
  std::vector<std::string> last_lines;
  // The note that the trainer left behind; used when it could not report to its agent.
  std::string reason;
  bool permanent = false;
  bool out_of_memory = false;  // killed by the kernel, because memory ran out
  std::string gpu_note;        // the driver's reports about its GPU; empty: none, or it has no GPU
  bool gpu_failed = false;     // whether that rules out a fault of the program
  std::optional<double> device_utilization = {};  // as in RankFigures
};
// The agent will end: no further run starts.
struct Leaving {};
// The agent ends with its trainers.
struct ShutDown {
  double grace_seconds = 0;
};
struct TimePassed {};

struct AgentEvent {
  double now = 0;  // seconds of any steady clock
  std::variant<Restored, CoordinatorSaid, TrainerSaid, StartFailed, TrainerEnded, Leaving, ShutDown,
               TimePassed>
      body;
};

// ---- effects, to be done in this order ----

// Makes the current state of the run durable, before any effect that follows.
struct KeepRun {
  RunKey run;
};
struct StartTrainer {
  RunKey run;
  int rank = 0;
};
// Takes over a rank that another agent started. Answered by TrainerEnded, immediately if it has
// gone.
struct AdoptTrainer {
  RunKey run;
  int rank = 0;
};
struct SignalTrainer {
  RunKey run;
  int rank = 0;
  int signal = 0;
};
struct TellTrainer {
  RunKey run;
  int rank = 0;
  v1::TrainerCommand command;
};
struct SendToCoordinator {
  v1::AgentMessage message;
};
struct ReadData {
  v1::PrepareData request;
};
// The run has ended: its processes are reaped, and no more messages about it follow. Kept as ended.
struct ForgetRun {
  RunKey run;
};

using AgentEffect = std::variant<KeepRun, StartTrainer, AdoptTrainer, SignalTrainer, TellTrainer,
                                 SendToCoordinator, ReadData, ForgetRun>;

std::vector<AgentEffect> Step(AgentState& state, const AgentEvent& event);

// The size of the scratch file of a rank, which its plan decides.
int64_t ScratchBytes(const RunState& run, const RankState& rank);

// The step that a rank reports; step 0 if a trainer of another version reports none.
const v1::StepRecord& RecordOf(const v1::TrainerStep& step);

// Runs whose end the coordinator might not know.
enum class EndedRuns { kLeaveOut, kInclude };

// Runs with live or waiting ranks, and those that have ended where they are wanted.
std::vector<v1::RunId> RunsOf(const AgentState& state, EndedRuns ended);

v1::RunId ToRunId(const RunKey& key);
RunKey ToRunKey(const v1::RunId& id);

}  // namespace tercio::agent
