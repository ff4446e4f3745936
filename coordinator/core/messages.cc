// Messages to nodes, events for people, and changes for the store.
#include <utility>

#include "coordinator/core/checkpoints.h"
#include "coordinator/core/rank_set.h"
#include "coordinator/core/stepper.h"
#include "plan/preference.h"

namespace tercio::coordinator {

void Stepper::Place(JobState& job, PlacementPtr placement) {
  // Devices that become free may be what a waiting job needs.
  if (placement->ranks() == 0 && job.placement->ranks() > 0) reschedule_ = true;
  job.placement = std::move(placement);
  effects_.changed_placements.insert(job.record.id());
}

void Stepper::SendPrepare(const JobState& job, const std::string& node) {
  v1::CoordinatorMessage message;
  *message.mutable_prepare_data()->mutable_run() = RunOf(job.record);
  *message.mutable_prepare_data()->mutable_spec() = PresentSpec(job.record);
  // Without a checkpoint the data is prepared from its first sample.
  // Every attempt begins with a reference's weights.
  message.mutable_prepare_data()->set_from_start(job.record.checkpoint_step() == 0 ||
                                                 plan::HasReference(job.record.spec().training()));
  effects_.messages.push_back({node, std::move(message)});
}

void Stepper::SendStart(JobState& job, const std::string& node) {
  v1::CoordinatorMessage message;
  v1::StartRun* start = message.mutable_start_run();
  *start->mutable_run() = RunOf(job.record);
  start->set_token(job.record.token());
  *start->mutable_spec() = PresentSpec(job.record);
  start->set_resume_step(job.record.resume_step());
  start->set_vocab_size(job.record.vocab_size());
  if (job.record.has_best()) *start->mutable_best() = job.record.best();
  AddSnapshots(job, node, start);
  // The digest lets the trainers notice that the files on disk are not those that were committed.
  // It is left out for a start from memory, where the checkpoint is not what is loaded.
  const v1::CheckpointRecord* known = FindCheckpointRecord(job.record, job.record.resume_step());
  if (known != nullptr && job.record.resume_attempt() == 0) {
    start->set_resume_manifest_digest(known->manifest_digest());
    start->set_resume_numerics(known->numerics());
    if (known->has_state_digest()) start->set_resume_state_digest(known->state_digest());
  }
  // The part of a plan that the ranks of a stage share is as large as all the rest: sent once per
  // node.
  for (const int rank : job.placement->nodes().at(node).ranks) {
    v1::RankPlan* slice = start->add_ranks();
    *slice = plan::SliceWithoutStage(*job.plan, rank);
    const int stage = slice->placement().pipeline_index();
    if (!start->stages().contains(stage)) {
      (*start->mutable_stages())[stage] = job.plan->stages(stage);
    }
  }
  effects_.messages.push_back({node, std::move(message)});
}

void Stepper::SendStop(const std::string& node, const v1::RunId& run, double grace) {
  v1::CoordinatorMessage message;
  *message.mutable_stop_run()->mutable_run() = run;
  message.mutable_stop_run()->set_grace_seconds(grace);
  effects_.messages.push_back({node, std::move(message)});
}

void Stepper::StopNodes(JobState& job, double grace) {
  for (const auto& [name, node] : job.placement->nodes()) {
    // A node that has reported its end is not asked again: it would answer for no run.
    if (!HasRank(job.record.progress().stopped(), node.index)) {
      SendStop(name, RunOf(job.record), grace);
    }
  }
}

void Stepper::SaveAndStop(JobState& job) {
  // The flag is durable, so that a restarted coordinator asks again for the save (Reconcile).
  job.record.mutable_progress()->set_saving(true);
  SwitchTime(job, v1::TIME_KIND_CHECKPOINT_STALL);
  for (const auto& [name, node] : job.placement->nodes()) SendSave(job, name);
}

void Stepper::SendSave(const JobState& job, const std::string& node, AfterSave after) {
  v1::CoordinatorMessage message;
  *message.mutable_save_checkpoint()->mutable_run() = RunOf(job.record);
  message.mutable_save_checkpoint()->set_then_stop(after == AfterSave::kStop);
  effects_.messages.push_back({node, std::move(message)});
}

bool Stepper::Enter(JobState& job, v1::JobPhase phase) {
  v1::JobRecord& record = job.record;
  const bool had_ended = IsTerminal(record.phase());
  const absl::Status change = SetPhase(record, phase);
  const std::string refusal(change.message());
  effects_.answer.Update(change);
  if (!change.ok()) Note(job, "internal_error", refusal);
  if (!change.ok() && had_ended) return false;
  // Each phase of stopping has its own patience before SIGKILL.
  job.killed = false;
  record.set_progress_at(now_);
  const bool ends = IsTerminal(record.phase());
  if (ends) record.set_finished_at(now_);
  if (ends || record.phase() == v1::JOB_PHASE_QUEUED) reschedule_ = true;
  // The table sorts jobs by phase, and must follow every change of it.
  state_.jobs.Sort(job);
  effects_.changed_jobs.insert(record.id());
  if (change.ok()) return true;
  StopNodes(job, 0);
  record.set_error(refusal);
  Release(job);
  Note(job, "failed", refusal);
  return false;
}

void Stepper::SwitchTime(JobState& job, v1::TimeKind kind) {
  SwitchLedger(*job.record.mutable_ledger(), kind, now_);
}

void Stepper::Note(const JobState& job, EventKind kind, const std::string& message,
                   const std::string& node, int rank) {
  v1::JobEvent event;
  event.set_job_id(job.record.id());
  event.set_attempt(job.record.attempt());
  event.set_kind(std::string(kind.name()));
  event.set_message(message);
  event.set_node(node);
  event.set_rank(rank);
  effects_.events.push_back(event);
  // Watchers are woken by changed jobs, and an event is something to show.
  effects_.changed_jobs.insert(job.record.id());
}

void Stepper::NoteNode(const std::string& node, EventKind kind, const std::string& message) {
  v1::JobEvent event;
  event.set_kind(std::string(kind.name()));
  event.set_message(message);
  event.set_node(node);
  // Rank 0 is a rank: events of a node as a whole have none.
  event.set_rank(-1);
  effects_.events.push_back(event);
}

}  // namespace tercio::coordinator
