// The deciding part of the coordinator: pure. A step takes the state and one event, changes the
// state, and says what must be made durable and what must be done. No clock, threads, files or
// network in here: events carry the time and every random value.
//
// The life of an attempt:
//   queued -> preparing -> starting -> running -> (all ranks exit 0) succeeded
//   any of them -> stopping -> backing_off -> queued      a rank or node was lost and the budget
//   allows
//                           -> failed | cancelled
// An attempt is fenced by (job, attempt): events of an older one change nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "plan/plan_builder.h"
#include "proto/tercio/v1/events.pb.h"
#include "proto/tercio/v1/job.pb.h"
#include "proto/tercio/v1/node_service.pb.h"
#include "proto/tercio/v1/state.pb.h"

namespace tercio::coordinator {

struct JobState {
  v1::JobRecord record;
  // Of the present attempt; known to nobody after a restart of the coordinator, and told again by
  // the agents.
  std::set<std::string> prepared_nodes;
  std::set<std::string> stopped_nodes;
  std::set<int> running_ranks;
  std::set<int> finished_ranks;
  std::string data_digest;
  bool checkpoint_known = false;
};

struct NodeState {
  v1::AgentHello hello;
  bool connected = false;
  double last_heard = 0;
};

struct State {
  std::map<std::string, JobState> jobs;
  std::map<std::string, NodeState> nodes;
  int64_t next_number = 1;
};

// What one rank gets of its node, the least over all ranks of a job.
struct RankShare {
  int threads = 1;
  int64_t memory_bytes = int64_t{1} << 62;
};

// Fixed for the life of a coordinator.
struct Settings {
  double heartbeat_interval = 5;
  double node_lease = 15;     // a node not heard of for this long is lost
  double stop_grace = 5;      // between SIGTERM and SIGKILL
  double save_timeout = 120;  // for the last checkpoint of a cancelled job
  double first_backoff = 1;   // doubles with every restart
  double longest_backoff = 60;
  std::string checkpoint_address;
  // Layout and plan for these slots; INVALID_ARGUMENT | RESOURCE_EXHAUSTED when impossible.
  std::function<absl::StatusOr<v1::Plan>(const v1::JobSpec&, const std::vector<plan::DeviceSlot>&,
                                         const RankShare&)>
      make_plan;
};

// ---- events ----

struct Submitted {
  std::string job_id;
  v1::JobSpec spec;
};
struct CancelRequested {
  std::string job_id;
  bool save_checkpoint = false;
  std::string reason;
};
struct ResumeRequested {
  std::string job_id;
  v1::JobSpec spec;
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
// The answer to FindCheckpoint; step 0: none.
struct CheckpointFound {
  v1::RunId run;
  int64_t step = 0;
  std::string path;
  int64_t bytes = 0;
  std::vector<std::string> damaged;
};
struct CheckpointCommitted {
  v1::RunId run;
  int64_t step = 0;
  std::string path;
  int64_t bytes = 0;
};
struct CheckpointFailed {
  v1::RunId run;
  int64_t step = 0;
  std::string error;
};
struct Tick {};

struct Event {
  double now = 0;
  std::string token;  // fresh randomness, used when the event starts an attempt
  std::variant<Submitted, CancelRequested, ResumeRequested, NodeAttached, NodeDetached, NodeSaid,
               CheckpointFound, CheckpointCommitted, CheckpointFailed, Tick>
      body;
};

// ---- effects ----

struct SendToNode {
  std::string node;
  v1::CoordinatorMessage message;
};
struct FindCheckpoint {
  v1::RunId run;
};

struct Effects {
  // To be made durable, before anything below leaves.
  std::set<std::string> changed_jobs;
  std::vector<std::pair<std::string, v1::StepRecord>> steps;  // job, record
  std::vector<v1::JobEvent> events;  // sequence and time are set by the store
  std::vector<std::pair<std::string, v1::LogLine>> logs;
  std::vector<std::pair<std::string, v1::RankTrace>> traces;
  // To be done after that.
  std::vector<SendToNode> messages;
  std::vector<FindCheckpoint> searches;
  // Nodes that count as lost: their streams are closed, so that they come again with a hello.
  std::vector<std::string> disconnected;
  // The answer to a request that the event stands for (cancel, resume).
  absl::Status answer;
};

Effects Step(State& state, const Event& event, const Settings& settings);

bool IsTerminal(v1::JobPhase phase);

// Free devices of a connected node.
int FreeSlots(const State& state, const std::string& node);

}  // namespace tercio::coordinator
