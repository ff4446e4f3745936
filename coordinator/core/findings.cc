// Faults that all ranks of an attempt find alike: replicas whose weights differ, and spikes of the
// loss.
//
// A rollback is first a marker in the job's specification: a skip of zero batches after the step
// that asks for it. Its extent is filled in when the next attempt knows its checkpoint.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "coordinator/core/stepper.h"
#include "plan/data_position.h"

namespace tercio::coordinator {
namespace {

// Whether it is still open that the attempt's end is also the job's.
bool WillContinue(const v1::JobRecord& record) {
  return record.stop_reason() == v1::STOP_REASON_UNSPECIFIED ||
         record.stop_reason() == v1::STOP_REASON_RESTART ||
         record.stop_reason() == v1::STOP_REASON_MOVE;
}

bool RollBackIsPending(const v1::JobRecord& record) {
  const auto& skips = record.spec().training().data_skips();
  return !skips.empty() && skips.at(skips.size() - 1).batches() == 0;
}

}  // namespace

void Stepper::NoteSpike(JobState& job, const v1::StepRecord& step) {
  if (step.spike().empty()) return;
  Note(job, "spike",
       absl::StrCat("step ", step.step(), ": ", step.spike(),
                    step.skipped() ? "; the weights are unchanged" : ""));
}

bool Stepper::HandleFinding(JobState& job, const v1::ExitRecord& exit) {
  if (exit.corrupt_rank_plus_one() != 0) {
    ReplicasDiffer(job, exit);
  } else if (exit.roll_back_from() > 0) {
    RollBack(job, exit);
  } else {
    return false;
  }
  return true;
}

// Every rank reports the same, and some may have reported less before: that a peer has gone.
void Stepper::ReplicasDiffer(JobState& job, const v1::ExitRecord& exit) {
  v1::JobRecord& record = job.record;
  const int odd = exit.corrupt_rank_plus_one() - 1;
  const bool named = odd >= 0 && odd < job.placement->ranks();
  const std::string node = named ? job.placement->NodeOf(odd) : "";
  const std::string what = absl::StrCat("replicas differ ", exit.reason());
  // The first rank to report it decides; the repetitions of the others are not noted again.
  if (WillContinue(record) && record.error() != what) {
    Note(job, "replicas_differ", what, node, named ? odd : -1);
    if (record.phase() == v1::JOB_PHASE_STOPPING) {
      TakeBackBlame(job);
      job.cause = FaultCause::kReplicasDiffer;
      record.set_error(what);
      if (named) Blame(node, what);
    }
  }
  Fault(job, {FaultCause::kReplicasDiffer, what, false, node, /*certain=*/true, named ? odd : -1});
}

void Stepper::RollBack(JobState& job, const v1::ExitRecord& exit) {
  v1::JobRecord& record = job.record;
  v1::TrainingSpec& training = *record.mutable_spec()->mutable_training();
  const int64_t from = exit.roll_back_from();
  // The step must lie behind the start of the attempt: going back to it would
  // otherwise lead nowhere. The numbers come from a trainer and are checked.
  const bool possible = record.spec().fault_tolerance().on_spike() == v1::ON_SPIKE_ROLLBACK &&
                        record.roll_backs() < kMostRollBacks && from > record.resume_step() &&
                        from <= training.steps();
  // All ranks ask for the same rollback; one marker is enough.
  if (WillContinue(record) && possible && !RollBackIsPending(record)) {
    training.add_data_skips()->set_after_step(from);
    record.set_roll_backs(record.roll_backs() + 1);
    if (record.phase() == v1::JOB_PHASE_STOPPING) {
      TakeBackBlame(job);
      job.cause = FaultCause::kRollBack;
      record.set_error(exit.reason());
    }
  }
  Fault(job, {FaultCause::kRollBack, exit.reason(), false, "", /*certain=*/false, exit.rank()});
}

// Removes the fault recorded first in this attempt, which was not the reason for its end.
void Stepper::TakeBackBlame(JobState& job) {
  for (const auto& [name, place] : job.placement->nodes()) {
    const auto found = state_.nodes.find(name);
    if (found == state_.nodes.end()) continue;
    v1::NodeRecord& node = found->second.record;
    auto* faults = node.mutable_faults();
    // The fault has no other mark than its time, which Fault has given to the job and the node.
    const auto kept = std::remove(faults->begin(), faults->end(), job.record.last_fault_at());
    if (kept == faults->end()) continue;
    faults->erase(kept, faults->end());
    effects_.changed_nodes.insert(name);
    if (!node.quarantined() || node.faults_size() >= settings_.quarantine_faults) continue;
    node.set_quarantined(false);
    node.clear_reason();
    NoteNode(name, "node_released", "its last fault was caused elsewhere");
  }
}

void Stepper::SettleRollBack(JobState& job) {
  v1::JobRecord& record = job.record;
  if (!RollBackIsPending(record)) return;
  v1::TrainingSpec& training = *record.mutable_spec()->mutable_training();
  const int64_t bad = training.data_skips(training.data_skips_size() - 1).after_step();
  training.mutable_data_skips()->RemoveLast();
  const int64_t resume = record.resume_step();
  if (resume >= bad) return;  // the checkpoint is of a run that got past the spike
  plan::SkipSpike(resume, bad, &training);
  Note(job, "rolled_back",
       absl::StrCat("step ", bad, " was a spike: the run rolls back to step ", resume,
                    " and skips the ", bad - resume, " batches that led to it (",
                    record.roll_backs(), " of ", kMostRollBacks, ")"));
}

}  // namespace tercio::coordinator
