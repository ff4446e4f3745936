// Requests of people.
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/core/stepper.h"
#include "plan/epochs.h"

namespace tercio::coordinator {

void Stepper::Handle(const Submitted& submitted) {
  if (state_.jobs.contains(submitted.job_id)) {
    effects_.answer = absl::AlreadyExistsError(
        absl::StrCat("job ", submitted.job_id, " has already been submitted"));
    return;
  }
  JobState& job = state_.jobs[submitted.job_id];
  job.record.set_id(submitted.job_id);
  // The number gives the place in the queue, also after restarts.
  job.record.set_number(state_.next_number++);
  *job.record.mutable_spec() = submitted.spec;
  job.record.set_owner(submitted.owner);
  job.record.set_submitted_at(now_);
  // The ledger opens with the submission, so that its parts sum to the whole life of the job.
  OpenLedger(*job.record.mutable_ledger(), v1::TIME_KIND_QUEUED, now_);
  if (!Enter(job, v1::JOB_PHASE_QUEUED)) return;
  if (!submitted.request_id.empty()) {
    effects_.requests.emplace_back(submitted.request_id, submitted.job_id);
  }
  Note(job, "submitted", absl::StrCat("job ", submitted.spec.name(), " submitted"));
}

void Stepper::Handle(const CancelRequested& cancel) {
  const auto found = state_.jobs.find(cancel.job_id);
  if (found == state_.jobs.end()) {
    effects_.answer = absl::NotFoundError(absl::StrCat("no job ", cancel.job_id));
    return;
  }
  JobState& job = found->second;
  const v1::JobPhase phase = job.record.phase();
  if (IsTerminal(phase)) {
    effects_.answer =
        absl::FailedPreconditionError(absl::StrCat("job ", cancel.job_id, " has already ended"));
    return;
  }
  // The reason is set before the phases below are told apart: Finish makes it the last event.
  job.record.set_error(cancel.reason.empty() ? "cancelled" : cancel.reason);
  Note(job, "cancel_requested", job.record.error());
  if (!HasLiveRun(phase)) {
    // Agents that only prepare data have no ranks that could need a grace.
    if (phase == v1::JOB_PHASE_PREPARING) StopNodes(job, 0);
    Finish(job, v1::JOB_PHASE_CANCELLED);
    return;
  }
  job.record.set_stop_reason(v1::STOP_REASON_CANCEL);
  if (!Enter(job, v1::JOB_PHASE_STOPPING)) return;
  if (cancel.save_checkpoint && phase == v1::JOB_PHASE_RUNNING) {
    SaveAndStop(job);
  } else {
    // A job that is stopping already has had its grace, and gives up a checkpoint
    // under way: a person who cancels it now does not want to wait.
    job.record.mutable_progress()->set_saving(false);
    StopNodes(job, phase == v1::JOB_PHASE_STOPPING ? 0 : settings_.stop_grace);
  }
}

void Stepper::Handle(const ResumeRequested& resume) {
  const auto found = state_.jobs.find(resume.job_id);
  if (found == state_.jobs.end()) {
    effects_.answer = absl::NotFoundError(absl::StrCat("no job ", resume.job_id));
    return;
  }
  JobState& job = found->second;
  v1::JobRecord& record = job.record;
  if (!IsTerminal(record.phase())) {
    effects_.answer =
        absl::FailedPreconditionError(absl::StrCat("job ", resume.job_id, " has not ended"));
    return;
  }
  v1::JobSpec spec = resume.spec;
  // The data is prepared again, which may find another number of samples.
  if (record.train_samples() > 0) {
    plan::SetStepsOfEpochs(record.train_samples(), spec.mutable_training());
  }
  // A finished job may be lengthened; it then continues from its last checkpoint.
  const bool longer = spec.training().steps() > record.step();
  if (record.phase() == v1::JOB_PHASE_SUCCEEDED && !longer) {
    const char* length = spec.training().epochs() > 0 ? "epochs" : "steps";
    effects_.answer = absl::FailedPreconditionError(
        absl::StrCat("job ", resume.job_id, " has succeeded; to train on, give it more ", length,
                     ": --set training.", length, "=N"));
    return;
  }
  // Values of another metric say nothing about the new one.
  if (spec.training().evaluate().keep_best() != record.spec().training().evaluate().keep_best()) {
    for (v1::CheckpointRecord& known : *record.mutable_checkpoints()) known.clear_value();
    record.clear_candidates();
    record.clear_best();
  }
  // Skipped batches stay skipped; a job file does not list them.
  const auto data_skips = record.spec().training().data_skips();
  *record.mutable_spec() = std::move(spec);
  *record.mutable_spec()->mutable_training()->mutable_data_skips() = data_skips;
  // The fault that ended the job has been seen by a person: the budgets start over.
  record.set_restarts_used(0);
  record.set_crashes(0);
  record.set_elastic_ranks(0);
  record.set_waiting_since(0);
  record.clear_recent_step_seconds();
  record.set_failed_saves(0);
  record.set_saves_fail_since(0);
  record.clear_save_error();
  record.clear_error();
  record.clear_finished_at();
  // An empty digest lets the next attempt accept whatever data it finds (SameData).
  if (resume.accept_data_change) record.clear_data_digest();
  // One is added so that zero, the default in stores of all versions, means no choice.
  record.set_from_step_plus_one(resume.from_step.has_value() ? *resume.from_step + 1 : 0);
  record.set_unreadable_since(0);
  record.clear_unreadable_error();
  SwitchTime(job, v1::TIME_KIND_QUEUED);
  if (!Enter(job, v1::JOB_PHASE_QUEUED)) return;
  Note(job, "resumed",
       resume.accept_data_change ? "resumed on request, accepting changed data"
                                 : "resumed on request");
}

void Stepper::Handle(const SaveRequested& request) {
  const auto found = state_.jobs.find(request.job_id);
  if (found == state_.jobs.end()) {
    effects_.answer = absl::NotFoundError(absl::StrCat("no job ", request.job_id));
    return;
  }
  const JobState& job = found->second;
  // Outside this phase no rank can save: none has made a step yet, or all of them end.
  if (job.record.phase() != v1::JOB_PHASE_RUNNING) {
    effects_.answer = absl::FailedPreconditionError(
        absl::StrCat("job ", request.job_id, " is not running: there is nothing new to save"));
    return;
  }
  for (const auto& [name, node] : job.placement->nodes()) SendSave(job, name, AfterSave::kGoOn);
}

void Stepper::Handle(const DeleteRequested& request) {
  const auto found = state_.jobs.find(request.job_id);
  if (found == state_.jobs.end()) {
    effects_.answer = absl::NotFoundError(absl::StrCat("no job ", request.job_id));
    return;
  }
  const v1::JobRecord& record = found->second.record;
  if (!IsTerminal(record.phase())) {
    effects_.answer = absl::FailedPreconditionError(
        absl::StrCat("job ", request.job_id, " has not ended; cancel it first"));
    return;
  }
  // The removal takes the specification along, since the record is gone when it begins.
  if (request.checkpoints) {
    effects_.job_removals.push_back({record.id(), record.spec().checkpoint()});
  }
  effects_.deleted_jobs.push_back(record.id());
  // Nothing of this event may write a job again that it deletes.
  effects_.changed_jobs.erase(record.id());
  state_.scrubs.Forget(record.id());
  state_.jobs.erase(found);
}

// Their checkpoints stay.
void Stepper::DeleteOldJobs() {
  if (settings_.job_retention <= 0) return;
  // EndedBefore returns copies of the ids, so that deleting does not disturb the loop.
  for (const std::string& id : state_.jobs.EndedBefore(now_ - settings_.job_retention)) {
    Handle(DeleteRequested{id, /*checkpoints=*/false});
  }
}

absl::Status NoNode(const std::string& node) {
  return absl::NotFoundError(
      absl::StrCat("no node ", node, "; `tercio nodes` lists the known ones"));
}

void Stepper::Handle(const FiguresRecorded& recorded) {
  const auto found = state_.nodes.find(recorded.node);
  if (found == state_.nodes.end()) {
    effects_.answer = NoNode(recorded.node);
    return;
  }
  effects_.changed_nodes.insert(recorded.node);
  if (!recorded.figures.has_value()) {
    found->second.record.clear_figures();
    NoteNode(recorded.node, "node_measured", "figures for predictions were removed");
    return;
  }
  v1::MachineFigures& figures = *found->second.record.mutable_figures();
  figures = *recorded.figures;
  figures.mutable_recorded()->set_seconds(static_cast<int64_t>(now_));
  NoteNode(recorded.node, "node_measured", "figures for predictions were recorded");
}

void Stepper::Handle(const NodeChangeRequested& request) {
  const auto found = state_.nodes.find(request.node);
  if (found == state_.nodes.end()) {
    effects_.answer = NoNode(request.node);
    return;
  }
  NodeState& node = found->second;
  effects_.changed_nodes.insert(request.node);
  // A waiting job may fit now, or be explained differently.
  reschedule_ = true;
  switch (request.change) {
    case NodeChange::kDrain:
      return Drain(node);
    case NodeChange::kUndrain:
      if (!node.record.drained()) return;
      node.record.set_drained(false);
      // The reason is shared: while the node is still quarantined it explains that.
      if (!node.record.quarantined()) node.record.clear_reason();
      return NoteNode(request.node, "node_undrained", "schedulable again");
    case NodeChange::kRelease:
      if (!node.record.quarantined()) return;
      node.record.set_quarantined(false);
      // Old faults would send the node back into quarantine at the very next one.
      node.record.clear_faults();
      node.record.clear_reason();
      return NoteNode(request.node, "node_released", "released from quarantine");
  }
}

absl::Status CheckDrill(const v1::JobRecord& record, const Placement& placement, int rank) {
  if (record.phase() != v1::JOB_PHASE_RUNNING) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", record.id(), " is not running: a drill needs a running job"));
  }
  if (rank >= 0 && rank < placement.ranks()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the job has ranks 0 to ", placement.ranks() - 1));
}

void Stepper::Handle(const DrillRequested& request) {
  const v1::InjectFault& fault = request.fault;
  const auto found = state_.jobs.find(request.job_id);
  effects_.answer = found == state_.jobs.end()
                        ? absl::NotFoundError(absl::StrCat("no job ", request.job_id))
                        : CheckDrill(found->second.record, *found->second.placement, fault.rank());
  if (!effects_.answer.ok()) return;
  const JobState& job = found->second;
  const std::string& node = job.placement->NodeOf(fault.rank());
  Note(job, "drill", fault.fault(), node, fault.rank());
  // The caller itself injects faults of checkpoints; the event above is all it needs.
  if (!request.on_node) return;
  v1::CoordinatorMessage message;
  *message.mutable_inject_fault() = fault;
  *message.mutable_inject_fault()->mutable_run() = RunOf(job.record);
  effects_.messages.push_back({node, message});
}

void Stepper::Drain(NodeState& node) {
  const std::string& name = node.record.name();
  if (!node.record.drained()) {
    node.record.set_drained(true);
    if (!node.record.quarantined()) node.record.set_reason("drained on request");
    NoteNode(name, "node_drained", "not schedulable; its jobs save and move to other nodes");
  }
  MoveAway(name, absl::StrCat("node ", name, " is drained"));
}

}  // namespace tercio::coordinator
