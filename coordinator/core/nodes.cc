// Nodes that come, report and go.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "coordinator/core/rank_set.h"
#include "coordinator/core/stepper.h"

namespace tercio::coordinator {
namespace {

// Seconds between two looks at all jobs, also those that have ended, for checkpoints that are to be
// verified; where one was committed or verified the next comes immediately.

}  // namespace

// Looked up by the field's name, so that no kind of message that is added later goes unfenced.
const v1::RunId* RunOf(const v1::AgentMessage& message) {
  static const auto* const bodies = v1::AgentMessage::descriptor()->FindOneofByName("body");
  const auto* reflection = message.GetReflection();
  const auto* kind = reflection->GetOneofFieldDescriptor(message, bodies);
  if (kind == nullptr) return nullptr;
  const auto* field = kind->message_type()->FindFieldByName("run");
  if (field == nullptr || field->is_repeated()) return nullptr;
  const google::protobuf::Message& body = reflection->GetMessage(message, kind);
  return dynamic_cast<const v1::RunId*>(&body.GetReflection()->GetMessage(body, field));
}

void Stepper::Handle(const NodeAttached& attached) {
  const std::string& name = attached.hello.node();
  NodeState& node = state_.nodes[name];
  // The same spool means the same state directory: sequences continue, and the
  // node remembers its runs. Another one starts over at sequence 1.
  const bool same_spool =
      !attached.hello.spool_id().empty() && node.record.spool_id() == attached.hello.spool_id();
  if (!same_spool) {
    node.record.set_name(name);
    node.record.set_spool_id(attached.hello.spool_id());
    node.record.set_reported(0);
    effects_.changed_nodes.insert(name);
  }
  node.hello = attached.hello;
  node.connected = true;
  node.lost = false;
  if (node.record.leaving()) {
    node.record.set_leaving(false);
    effects_.changed_nodes.insert(name);
  }
  node.last_heard = now_;
  // Copies in memory may have died with the agent's process; it reports what it still holds.
  node.snapshots.Clear();
  effects_.acknowledged[name] = node.record.reported();
  reschedule_ = true;
  // Runs of older attempts, or of jobs that have ended, would hold devices that others were given.
  for (const v1::RunId& run : attached.hello.running()) {
    const auto found = state_.jobs.find(run.job_id());
    const bool wanted = found != state_.jobs.end() &&
                        found->second.record.attempt() == run.attempt() &&
                        HasLiveRun(found->second.record.phase());
    if (!wanted) SendStop(name, run, 0);
  }
  // Faults of the GPUs are taken over before the jobs are looked at, so that none of
  // them is sent an order for a device that the agent has just reported.
  DeviceFaults faults;
  for (int i = 0; i < attached.hello.device_facts_size(); ++i) {
    const std::string& fault = attached.hello.device_facts(i).fault();
    if (!fault.empty()) faults[i] = fault;
  }
  OnDeviceFaults(name, faults, {});
  for (JobState* const job : state_.jobs.Active()) {
    Reconcile(*job, name, attached.hello, same_spool);
  }
}

namespace {

// The first rank there whose device the node does not offer any more; -1: there is none.
int RankWithoutDevice(const Placement& placement, const std::string& name,
                      const v1::AgentHello& hello) {
  for (const int rank : placement.nodes().at(name).ranks) {
    if (placement.DeviceOf(rank) >= hello.devices()) return rank;
  }
  return -1;
}

}  // namespace

// Repeats the node's orders for this job: messages may have been lost.
void Stepper::Reconcile(JobState& job, const std::string& name, const v1::AgentHello& hello,
                        bool same_spool) {
  const v1::JobRecord& record = job.record;
  if (!HoldsSlots(record.phase()) || !job.placement->Has(name)) return;
  const int index = job.placement->nodes().at(name).index;
  const v1::RunId wanted = RunOf(record);
  const bool runs =
      // Only this attempt counts: an older run of the job was told to stop above.
      std::any_of(hello.running().begin(), hello.running().end(), [&](const v1::RunId& run) {
        return run.job_id() == wanted.job_id() && run.attempt() == wanted.attempt();
      });
  switch (record.phase()) {
    case v1::JOB_PHASE_PREPARING:
      if (const int rank = RankWithoutDevice(*job.placement, name, hello); rank >= 0) {
        return Move(job, absl::StrCat("node ", name, " reconnected with ", hello.devices(),
                                      " devices, but rank ", rank, " was assigned device ",
                                      job.placement->DeviceOf(rank)));
      }
      if (!HasRank(record.progress().prepared(), index)) SendPrepare(job, name);
      if (!record.progress().checkpoint_known()) Search(job);
      return;
    case v1::JOB_PHASE_STARTING:
    case v1::JOB_PHASE_RUNNING:
      if (runs || HasRank(record.progress().stopped(), index)) return;
      // The end of a run is reported until it is kept here: without one the order never arrived. A
      // node that has forgotten what it did may have run it, and no attempt starts twice on a node.
      if (same_spool && record.phase() == v1::JOB_PHASE_STARTING) {
        if (KnowsSources(job)) return SendStart(job, name);
        return Fault(job,
                     {FaultCause::kOther,
                      absl::StrCat("node ", name,
                                   " was not told which nodes hold its ranks' state in memory, "
                                   "and the coordinator has restarted since"),
                      false, ""});
      }
      return Fault(job, {FaultCause::kNodeLost, absl::StrCat("node ", name, " has lost its ranks"),
                         false, name});
    // In the remaining phase, stopping, a node that no longer runs the attempt has stopped it.
    default:
      if (!runs) return OnNodeStopped(job, name);
      if (record.progress().saving()) return SendSave(job, name);
      SendStop(name, wanted, settings_.stop_grace);
  }
}

void Stepper::Handle(const NodeDetached& detached) {
  const auto found = state_.nodes.find(detached.node);
  // The lease continues to count: a broken connection is no lost node, and most come back.
  if (found != state_.nodes.end()) found->second.connected = false;
}

void Stepper::LoseNode(const std::string& name) {
  NodeState& node = state_.nodes.at(name);
  node.lost = true;
  node.connected = false;
  bool worked = false;
  for (JobState* const active : state_.jobs.Active()) {
    JobState& job = *active;
    if (!HoldsSlots(job.record.phase()) || !job.placement->Has(name)) continue;
    worked = true;
    // Nothing ran yet, so this costs neither a restart of the budget nor the node's reputation.
    if (job.record.phase() == v1::JOB_PHASE_PREPARING) {
      Place(job, NoPlacement());
      if (Enter(job, v1::JOB_PHASE_QUEUED)) SwitchTime(job, v1::TIME_KIND_QUEUED);
      continue;
    }
    Fault(job, {FaultCause::kNodeLost, absl::StrCat("node ", name, " was lost (no heartbeat)"),
                false, name});
    // The node cannot report its end any more; whatever it still does is fenced.
    OnNodeStopped(job, name);
  }
  if (worked) NoteNode(name, "node_lost", "no heartbeat");
  effects_.disconnected.push_back(name);
}

// Forgets nodes that have been away for long and carry no state worth keeping.
void Stepper::ForgetNodes() {
  for (auto entry = state_.nodes.begin(); entry != state_.nodes.end();) {
    const NodeState& node = entry->second;
    const bool forgotten = node.lost && !node.record.drained() && !node.record.quarantined() &&
                           now_ - node.last_heard > settings_.node_memory;
    // ChangesOf finds the name missing in the state and deletes the node from the store.
    if (forgotten) effects_.changed_nodes.insert(entry->first);
    entry = forgotten ? state_.nodes.erase(entry) : std::next(entry);
  }
}

void Stepper::Leave(NodeState& node) {
  if (node.record.leaving()) return;
  node.record.set_leaving(true);
  const std::string& name = node.record.name();
  effects_.changed_nodes.insert(name);
  NoteNode(name, "node_leaves", "its agent is stopping; its jobs save and move to other nodes");
  MoveAway(name, absl::StrCat("the agent of node ", name, " is stopping"));
}

void Stepper::MoveAway(const std::string& node, const std::string& why) {
  for (JobState* const job : state_.jobs.Active()) {
    if (HoldsSlots(job->record.phase()) && job->placement->Has(node)) Move(*job, why);
  }
}

// Whether every job could run without this node: no quarantine may starve one.
bool Stepper::OthersSuffice(const std::string& name) const {
  const std::vector<JobState*> active = state_.jobs.Active();
  return std::all_of(active.begin(), active.end(), [&](const JobState* job) {
    const v1::JobSpec& spec = job->record.spec();
    // All devices of the others count, also those in use now: their jobs end some day.
    return plan::RanksOfJob(spec) <= RoomBeside(spec, {{name}, {}}).total;
  });
}

// Faults that keep coming from one node are the node's.
void Stepper::Blame(const std::string& name, const std::string& what) {
  const auto found = state_.nodes.find(name);
  if (found == state_.nodes.end()) return;
  v1::NodeRecord& record = found->second.record;
  google::protobuf::RepeatedField<double> recent;
  // Old faults are dropped here, so that the record stays as small as the window.
  for (const double time : record.faults()) {
    if (now_ - time < settings_.quarantine_window) recent.Add(time);
  }
  recent.Add(now_);
  record.mutable_faults()->Swap(&recent);
  effects_.changed_nodes.insert(name);
  if (record.quarantined() || record.faults_size() < settings_.quarantine_faults ||
      !OthersSuffice(name)) {
    return;
  }
  Quarantine(record,
             absl::StrCat(record.faults_size(), " faults within ",
                          static_cast<int>(settings_.quarantine_window), " s, the last: ", what));
}

void Stepper::Quarantine(v1::NodeRecord& node, const std::string& why) {
  node.set_quarantined(true);
  node.set_reason(why);
  effects_.changed_nodes.insert(node.name());
  NoteNode(node.name(), "node_quarantined",
           absl::StrCat(why, "; release it with `tercio nodes release ", node.name(), "`"));
}

// Whether the report is not yet in the store. Reports without a sequence are of the moment only.
bool Stepper::IsNews(NodeState& node, uint64_t sequence) {
  v1::NodeRecord& record = node.record;
  if (sequence == 0 || record.spool_id().empty()) return true;
  if (sequence > record.reported()) {
    record.set_reported(sequence);
    effects_.changed_nodes.insert(record.name());
    effects_.acknowledged[record.name()] = sequence;
    return true;
  }
  effects_.acknowledged[record.name()] = record.reported();
  return false;
}

void Stepper::Handle(const NodeSaid& said) {
  const auto node = state_.nodes.find(said.node);
  // A lost node has lost its ranks as well. It is heard again after
  // a hello, which lets the two sides agree on what runs.
  if (node == state_.nodes.end() || node->second.lost) return;
  node->second.last_heard = now_;
  // What the store holds already is only acknowledged again: the agent had missed the answer.
  if (!IsNews(node->second, said.message.sequence())) return;
  if (said.message.has_leaving()) return Leave(node->second);
  HandleReport(said.node, said.message);
}

// Whether it is an attempt of a job that is known: what it has done belongs to the history, however
// late the reports arrive.
bool Stepper::HasBegun(const v1::RunId& run) const {
  const auto found = state_.jobs.find(run.job_id());
  return found != state_.jobs.end() && run.attempt() <= found->second.record.attempt();
}

// A node may have been away while a checkpoint of its steps was committed and the next attempt
// resumed from there: without its reports the history would have a gap.
void Stepper::HandleSteps(const v1::StepReport& report) {
  bool present = false;
  WithRun(report.run(), [&](JobState& job) {
    present = true;
    OnStepReport(job, report);
  });
  if (!present && HasBegun(report.run())) {
    effects_.steps.emplace_back(report.run().job_id(), report.record());
  }
}

bool Stepper::IsOthers(const v1::RunId& run, const std::string& node) const {
  const auto found = state_.jobs.find(run.job_id());
  if (found == state_.jobs.end()) return false;
  const JobState& job = found->second;
  return job.record.attempt() == run.attempt() && HoldsSlots(job.record.phase()) &&
         !job.placement->Has(node);
}

void Stepper::HandleReport(const std::string& node, const v1::AgentMessage& message) {
  // A node has no say in an attempt that is not placed on it, such as after the
  // coordinator's store was set back and a number was given out twice.
  if (const v1::RunId* run = RunOf(message); run != nullptr && IsOthers(*run, node)) {
    ++effects_.fenced;
    return;
  }
  switch (message.body_case()) {
    case v1::AgentMessage::kHeartbeat:
      return OnHeartbeat(node, message.heartbeat());
    case v1::AgentMessage::kInspected:
      return WithRun(message.inspected().run(),
                     [&](JobState& job) { OnRunInspected(job, node, message.inspected()); });
    case v1::AgentMessage::kDataPrepared:
      return WithRun(message.data_prepared().run(),
                     [&](JobState& job) { OnDataPrepared(job, node, message.data_prepared()); });
    case v1::AgentMessage::kRankPhase:
      return WithRun(message.rank_phase().run(),
                     [&](JobState& job) { OnRankPhase(job, message.rank_phase()); });
    case v1::AgentMessage::kStepReport:
      return HandleSteps(message.step_report());
    case v1::AgentMessage::kRankExited:
      return WithRun(message.rank_exited().run(),
                     [&](JobState& job) { OnRankExit(job, node, message.rank_exited().exit()); });
    case v1::AgentMessage::kRunStopped:
      return WithRun(message.run_stopped().run(), [&](JobState& job) { OnNodeStopped(job, node); });
    case v1::AgentMessage::kSnapshotsHeld:
      return OnSnapshotsHeld(node, message.snapshots_held());
    case v1::AgentMessage::kFaultInjected:
      return WithRun(message.fault_injected().run(), [&](JobState& job) {
        const std::string& error = message.fault_injected().error();
        Note(job, error.empty() ? EventKind("drill_done") : EventKind("drill_failed"), error, node);
      });
    case v1::AgentMessage::kProductsChosen:
      return WithRun(message.products_chosen().run(),
                     [&](JobState& job) { OnProductsChosen(job, message.products_chosen()); });
    case v1::AgentMessage::kSaveUnanswered:
      return WithRun(message.save_unanswered().run(), [&](JobState& job) {
        OnSaveUnanswered(job, node, message.save_unanswered());
      });
    case v1::AgentMessage::kTestEvaluated:
      return WithRun(message.test_evaluated().run(),
                     [&](JobState& job) { OnTestEvaluated(job, message.test_evaluated(), node); });
    case v1::AgentMessage::kTrace:
      // History is kept even of attempts that are over; it decides nothing.
      if (HasBegun(message.trace().run())) {
        effects_.traces.emplace_back(message.trace().run().job_id(), message.trace().trace());
      }
      return;
    case v1::AgentMessage::kLogs:
      if (!HasBegun(message.logs().run())) return;
      for (const v1::LogLine& line : message.logs().lines()) {
        effects_.logs.emplace_back(message.logs().run().job_id(), line);
      }
      if (message.logs().lost() > 0) {
        WithRun(message.logs().run(), [&](JobState& job) { OnLinesLost(job, node); });
      }
      return;
    // Not reports: the service takes the first and unpacks the second, Handle the third.
    case v1::AgentMessage::kHello:
    case v1::AgentMessage::kNews:
    case v1::AgentMessage::kLeaving:
    case v1::AgentMessage::BODY_NOT_SET:  // of a kind that only a newer agent knows
      return;
  }
}

void Stepper::Handle(const Tick&) {
  std::vector<std::string> lost;
  for (const auto& [name, node] : state_.nodes) {
    if (!node.lost && now_ - node.last_heard > settings_.node_lease) lost.push_back(name);
  }
  // Leases come first: what follows must not count on nodes that are gone.
  for (const std::string& name : lost) LoseNode(name);
  ForgetNodes();
  for (JobState* const active : state_.jobs.Active()) {
    JobState& job = *active;
    const v1::JobRecord& record = job.record;
    if (record.phase() == v1::JOB_PHASE_BACKING_OFF && now_ >= record.retry_at()) {
      SwitchTime(job, v1::TIME_KIND_QUEUED);
      Enter(job, v1::JOB_PHASE_QUEUED);
    }
    if (record.phase() == v1::JOB_PHASE_STOPPING &&
        now_ - record.progress_at() > settings_.save_timeout) {
      HastenStop(job);
    }
  }
  for (JobState* const job : state_.jobs.Active()) SearchAgainWhereDue(*job);
  DeleteOldJobs();
  Scrub();
  GrowWhereRoom();
  WatchForHangs();
}

}  // namespace tercio::coordinator
