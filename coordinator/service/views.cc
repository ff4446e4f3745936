#include "coordinator/service/views.h"

#include <cmath>
#include <map>
#include <numeric>

#include "coordinator/core/ledger.h"

namespace tercio::coordinator {
namespace {

// The records count in doubles; the wire has the seconds and the rest apart.
void SetTime(double seconds, google::protobuf::Timestamp* time) {
  time->set_seconds(static_cast<int64_t>(seconds));
  time->set_nanos(static_cast<int32_t>((seconds - std::floor(seconds)) * 1e9));
}

// A list of many jobs goes without the tables of classes, which may be large.
v1::Evaluation WithoutClasses(v1::Evaluation evaluation) {
  evaluation.clear_confusion();
  return evaluation;
}

}  // namespace

// People see fewer states than the core has phases: nobody acts differently on those that are
// one here. The names are part of the API, so that phases can change beneath them.
v1::JobState PublishedState(const v1::JobRecord& record) {
  switch (record.phase()) {
    case v1::JOB_PHASE_QUEUED:
      // A job that has begun before is restarting for its users, wherever it is in the queue.
      return record.attempt() == 0 ? v1::JOB_STATE_QUEUED : v1::JOB_STATE_RESTARTING;
    case v1::JOB_PHASE_PREPARING:
    case v1::JOB_PHASE_STARTING:
      // The first attempt starts; later ones restart.
      return record.attempt() <= 1 ? v1::JOB_STATE_STARTING : v1::JOB_STATE_RESTARTING;
    case v1::JOB_PHASE_RUNNING:
      return v1::JOB_STATE_RUNNING;
    case v1::JOB_PHASE_STOPPING:
      // A job that stops for any other reason still trains, at least until its save is done.
      return record.stop_reason() == v1::STOP_REASON_RESTART ? v1::JOB_STATE_RESTARTING
                                                             : v1::JOB_STATE_RUNNING;
    case v1::JOB_PHASE_BACKING_OFF:
      return v1::JOB_STATE_RESTARTING;
    case v1::JOB_PHASE_SUCCEEDED:
      return v1::JOB_STATE_SUCCEEDED;
    case v1::JOB_PHASE_FAILED:
      return v1::JOB_STATE_FAILED;
    case v1::JOB_PHASE_CANCELLED:
      return v1::JOB_STATE_CANCELLED;
    default:
      return v1::JOB_STATE_UNSPECIFIED;
  }
}

v1::Goodput GoodputOf(const v1::JobRecord& record, double now) {
  // A finished job accrues no more time.
  const auto totals = LedgerTotals(record.ledger(), IsTerminal(record.phase()) ? 0 : now);
  const auto seconds = [&](v1::TimeKind kind) { return static_cast<double>(totals[kind]) / 1e6; };
  v1::Goodput goodput;
  // The total is summed from the same numbers, so that the parts sum to it exactly.
  goodput.set_total(static_cast<double>(std::accumulate(totals.begin(), totals.end(), int64_t{0})) /
                    1e6);
  goodput.set_productive(seconds(v1::TIME_KIND_PRODUCTIVE));
  goodput.set_queued(seconds(v1::TIME_KIND_QUEUED));
  goodput.set_starting(seconds(v1::TIME_KIND_STARTING));
  goodput.set_checkpoint_stall(seconds(v1::TIME_KIND_CHECKPOINT_STALL));
  goodput.set_lost_work(seconds(v1::TIME_KIND_LOST_WORK));
  goodput.set_restarting(seconds(v1::TIME_KIND_RESTARTING));
  goodput.set_degraded(seconds(v1::TIME_KIND_DEGRADED));
  goodput.set_stopped(seconds(v1::TIME_KIND_STOPPED));
  return goodput;
}

v1::JobStatus BriefStatusOf(const Coordinator::JobView& view) {
  const v1::JobRecord& record = view.record;
  v1::JobStatus status;
  status.set_id(record.id());
  status.set_name(record.spec().name());
  status.set_owner(record.owner());
  status.set_state(PublishedState(record));
  status.set_step(record.step());
  status.set_steps(record.spec().training().steps());
  // Values that are not known are absent rather than 0, which would be drawn as a loss.
  if (record.has_loss()) status.set_loss(record.loss());
  if (record.has_validation_loss()) status.set_validation_loss(record.validation_loss());
  if (record.has_tokens_per_second()) status.set_tokens_per_second(record.tokens_per_second());
  if (record.has_mfu()) status.set_mfu(record.mfu());
  status.set_restarts(record.restarts());
  status.set_attempt(record.attempt());
  if (record.checkpoint_step() > 0) {
    // The record keeps these for the newest checkpoint, also where the list was pruned.
    v1::CheckpointInfo* checkpoint = status.mutable_checkpoint();
    checkpoint->set_job_id(record.id());
    checkpoint->set_step(record.checkpoint_step());
    checkpoint->set_path(record.checkpoint_path());
    checkpoint->set_bytes(record.checkpoint_bytes());
    checkpoint->set_attempt(record.checkpoint_attempt());
    SetTime(record.checkpoint_at(), checkpoint->mutable_committed_at());
  }
  if (const auto left = SecondsLeft(record); left.has_value()) status.set_eta_seconds(*left);
  // Saves that fail are shown while the job still trains: there is time to act.
  if (record.failed_saves() > 0) {
    v1::CheckpointTrouble* trouble = status.mutable_checkpoint_trouble();
    SetTime(record.saves_fail_since(), trouble->mutable_since());
    trouble->set_failures(record.failed_saves());
    trouble->set_error(record.save_error());
  }
  if (view.loading.has_value()) {
    status.mutable_loading()->set_bytes(view.loading->bytes);
    status.mutable_loading()->set_total_bytes(view.loading->total_bytes);
  }
  status.set_checkpoint_unreadable(record.unreadable_error());
  // While a job waits, this says what for.
  status.set_error(record.error());
  SetTime(record.submitted_at(), status.mutable_submitted_at());
  if (record.started_at() > 0) SetTime(record.started_at(), status.mutable_started_at());
  if (record.finished_at() > 0) SetTime(record.finished_at(), status.mutable_finished_at());
  *status.mutable_spec() = record.spec();
  status.set_tokens(record.tokens());
  status.set_queue_position(view.queue_position);
  status.set_best_step(record.best().step());
  status.set_train_samples(record.train_samples());
  if (record.has_validation()) *status.mutable_validation() = WithoutClasses(record.validation());
  if (record.has_test()) *status.mutable_test() = WithoutClasses(record.test());
  *status.mutable_goodput() = GoodputOf(record, view.now);
  // A brief answer has the layout only: the rest of a plan grows with the number of ranks.
  if (view.plan != nullptr) {
    *status.mutable_plan()->mutable_layout() = view.plan->layout();
    status.mutable_plan()->set_lanes(view.plan->lanes());
    status.mutable_plan()->set_numerics(view.plan->numerics());
    if (view.plan->has_predicted()) {
      *status.mutable_plan()->mutable_predicted() = view.plan->predicted();
    }
  }
  return status;
}

v1::JobStatus StatusOf(const Coordinator::JobView& view) {
  v1::JobStatus status = BriefStatusOf(view);
  if (view.plan != nullptr) *status.mutable_plan() = *view.plan;
  if (view.record.has_validation()) *status.mutable_validation() = view.record.validation();
  if (view.record.has_test()) *status.mutable_test() = view.record.test();
  return status;
}

void AddRanks(const Coordinator::JobView& view, const v1::Plan& plan,
              const std::vector<v1::ExitRecord>& exits, v1::JobStatus* status) {
  // Figures of ranks that have ended come with their exits, and are newer than the last report.
  std::map<int, const v1::RankFigures*> known;
  for (const auto& [rank, figures] : view.figures) known[rank] = &figures;
  for (const v1::ExitRecord& exit : exits) {
    if (exit.has_figures()) known[exit.rank()] = &exit.figures();
  }
  for (const v1::RankPlacement& place : plan.ranks()) {
    v1::RankView* rank = status->add_ranks();
    rank->set_rank(place.rank());
    rank->set_tensor(place.tensor_index());
    rank->set_pipeline(place.pipeline_index());
    rank->set_data(place.data_index());
    rank->set_node(place.node());
    rank->set_device(place.device());
    const auto found = known.find(place.rank());
    if (found != known.end()) *rank->mutable_figures() = *found->second;
  }
}

void AddLastLines(const v1::JobRecord& record, const std::vector<v1::ExitRecord>& exits,
                  const v1::Plan* plan, v1::JobStatus* status) {
  // Ranks are kept plus one, so that 0 means that no rank was at fault.
  const int rank = record.fault_rank_plus_one() - 1;
  for (const v1::ExitRecord& exit : exits) {
    if (exit.rank() != rank) continue;
    for (const std::string& text : exit.last_log_lines()) {
      v1::LogLine* line = status->add_last_lines();
      SetTime(record.last_fault_at(), line->mutable_time());
      line->set_attempt(record.fault_attempt());
      line->set_rank(rank);
      // A later attempt may have fewer ranks than the one that broke.
      if (plan != nullptr && rank < plan->ranks_size()) line->set_node(plan->ranks(rank).node());
      line->set_line(text);
    }
  }
}

}  // namespace tercio::coordinator
