#include "coordinator/core/core.h"

#include <algorithm>
#include <utility>

#include "coordinator/core/checkpoints.h"
#include "coordinator/core/stepper.h"

namespace tercio::coordinator {

void JobTable::Sort(const JobState& job) {
  const v1::JobRecord& record = job.record;
  // The old entry is removed first: a job that was resumed leaves the table of those that ended.
  Forget(record.id());
  if (!IsTerminal(record.phase())) {
    active_.insert(record.id());
    return;
  }
  // The end is kept beside the record, since Forget has to find it after the record has changed.
  ends_[record.id()] = {record.finished_at(), record.phase()};
  by_end_.insert({record.finished_at(), record.id()});
  ++ended_[record.phase()];
}

void JobTable::Forget(const std::string& id) {
  active_.erase(id);
  const auto end = ends_.find(id);
  if (end == ends_.end()) return;
  by_end_.erase({end->second.at, id});
  --ended_[end->second.phase];
  ends_.erase(end);
}

void JobTable::erase(Map::iterator job) {
  Forget(job->first);
  jobs_.erase(job);
}

std::vector<JobState*> JobTable::Active() {
  // Pointers into a map stay valid while others are added or erased; the callers rely on it.
  std::vector<JobState*> active;
  for (const std::string& id : active_) active.push_back(&jobs_.at(id));
  return active;
}

std::vector<const JobState*> JobTable::Active() const {
  std::vector<const JobState*> active;
  for (const std::string& id : active_) active.push_back(&jobs_.at(id));
  return active;
}

std::vector<const JobState*> JobTable::EndedSince(double time) const {
  std::vector<const JobState*> ended;
  // The empty id sorts before all others, so that jobs that ended at that very time are included.
  for (auto end = by_end_.lower_bound({time, ""}); end != by_end_.end(); ++end) {
    ended.push_back(&jobs_.at(end->second));
  }
  return ended;
}

std::vector<std::string> JobTable::EndedBefore(double time) const {
  std::vector<std::string> ended;
  for (const auto& [at, id] : by_end_) {
    if (at >= time) break;
    // Records of old versions have no time of their end and
    // sort first; nobody knows how old they are.
    if (at > 0) ended.push_back(id);
  }
  return ended;
}

Effects Stepper::Run() {
  std::visit([this](const auto& body) { Handle(body); }, event_.body);
  // The queue is looked at after every event: any of them may have freed devices.
  Schedule();
  return std::move(effects_);
}

Effects Step(State& state, const Event& event, const Settings& settings) {
  return Stepper(state, event, settings).Run();
}

namespace {

// A clock that was set back must not make a job wait until the clock catches up.
void PullBack(v1::JobRecord& record, double now) {
  // The length of the pause is kept, whatever the clock says: it grows with each restart.
  const double backoff = std::max(0.0, record.retry_at() - record.progress_at());
  record.set_progress_at(std::min(record.progress_at(), now));
  record.set_retry_at(std::min(record.retry_at(), now + backoff));
  record.set_waiting_since(std::min(record.waiting_since(), now));
  record.set_last_fault_at(std::min(record.last_fault_at(), now));
  // The checkpoints were not examined while there was no coordinator.
  if (record.unreadable_since() > 0) record.set_unreadable_since(now);
}

}  // namespace

State Restore(Stored stored, double now) {
  State state;
  for (const v1::NodeRecord& record : stored.nodes) {
    NodeState& node = state.nodes[record.name()];
    node.record = record;
    node.hello.set_node(record.name());
    // A node has one lease from now on, since it could not send heartbeats to a coordinator
    // that was away. It counts as lost until its hello unless a job is on it (below).
    node.last_heard = now;
  }
  for (const v1::JobRecord& record : stored.jobs) {
    JobState& job = state.jobs[record.id()];
    job.record = record;
    state.jobs.Sort(job);
    // When a checkpoint was last verified is in its record; the schedule only asks to look.
    state.scrubs.Set(record.id(), now);
    // A record without a ledger is of an older version: nobody knows how its time was spent.
    if (record.ledger().micros_size() == 0) {
      OpenLedger(*job.record.mutable_ledger(), v1::TIME_KIND_STOPPED, now);
    }
    AddUnrecordedCheckpoint(job.record);
    PullBack(job.record, now);
    const auto plan = stored.plans.find(record.id());
    if (plan != stored.plans.end()) {
      job.plan = std::make_shared<const v1::Plan>(std::move(plan->second));
    }
    const auto placement = stored.placements.find(record.id());
    if (placement != stored.placements.end()) {
      job.placement = std::make_shared<const Placement>(std::move(placement->second));
    }
    // Numbers are not stored apart: the next one follows from those that are in use.
    state.next_number = std::max(state.next_number, record.number() + 1);
    // Its agents may still run the ranks: they have one lease to say so before they count as lost.
    for (const auto& [name, held] : job.placement->nodes()) {
      NodeState& node = state.nodes[name];
      node.record.set_name(name);
      node.hello.set_node(name);
      node.last_heard = now;
      node.lost = false;
    }
  }
  return state;
}

bool HasLiveRun(v1::JobPhase phase) {
  return phase == v1::JOB_PHASE_STARTING || phase == v1::JOB_PHASE_RUNNING ||
         phase == v1::JOB_PHASE_STOPPING;
}

bool HoldsSlots(v1::JobPhase phase) {
  return HasLiveRun(phase) || phase == v1::JOB_PHASE_PREPARING;
}

v1::RunId RunOf(const v1::JobRecord& record) {
  v1::RunId run;
  run.set_job_id(record.id());
  run.set_attempt(record.attempt());
  return run;
}

bool StepCounts(const v1::JobRecord& record, const v1::StepRecord& step) {
  // An attempt that started before this step has discarded it, and made its own in its place.
  return std::all_of(record.resume_steps().begin(), record.resume_steps().end(),
                     [&](const auto& start) {
                       return start.first <= step.attempt() || start.second >= step.step();
                     });
}

std::optional<double> SecondsLeft(const v1::JobRecord& record) {
  if (IsTerminal(record.phase()) || record.recent_step_seconds().empty()) return std::nullopt;
  std::vector<float> seconds(record.recent_step_seconds().begin(),
                             record.recent_step_seconds().end());
  // The median ignores single slow steps, such as those with an evaluation.
  const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2);
  std::nth_element(seconds.begin(), middle, seconds.end());
  const int64_t left = std::max<int64_t>(0, record.spec().training().steps() - record.step());
  return static_cast<double>(left) * static_cast<double>(*middle);
}

v1::JobSpec PresentSpec(const v1::JobRecord& record) {
  v1::JobSpec spec = record.spec();
  // The specification in the record stays the one that was
  // asked for, so that the job can grow again.
  if (record.elastic_ranks() > 0) {
    *spec.mutable_parallelism() = record.elastic_parallelism();
    spec.mutable_resources()->set_ranks(record.elastic_ranks());
  }
  if (spec.fault_tolerance().on_spike() == v1::ON_SPIKE_ROLLBACK &&
      record.roll_backs() >= kMostRollBacks) {
    spec.mutable_fault_tolerance()->set_on_spike(v1::ON_SPIKE_REPORT);
  }
  return spec;
}

std::string NodeStateName(const State& state, const std::string& name) {
  const NodeState& node = state.nodes.at(name);
  const v1::NodeRecord& record = node.record;
  // A node that was drained may be switched off.
  if (node.lost) return record.drained() ? "drained" : record.leaving() ? "left" : "lost";
  if (record.quarantined()) return "quarantined";
  if (!record.drained() && !record.leaving()) return "ready";
  for (const JobState* job : state.jobs.Active()) {
    if (job->placement->Has(name)) return "draining";
  }
  return record.leaving() ? "draining" : "drained";
}

}  // namespace tercio::coordinator
