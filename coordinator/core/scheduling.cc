// Who gets which devices: all ranks of a job or none, first come, first served.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "coordinator/core/stepper.h"

namespace tercio::coordinator {
namespace {

std::map<std::string, int> UsedSlots(const State& state) {
  std::map<std::string, int> used;
  for (const auto& [id, job] : state.jobs) {
    for (const v1::RankSlot& slot : job.record.slots()) ++used[slot.node()];
  }
  return used;
}

}  // namespace

bool TakesRanks(const NodeState& node) {
  return node.connected && !node.lost && !node.leaving && !node.record.drained() &&
         !node.record.quarantined();
}

int FreeSlots(const State& state, const std::string& node) {
  const auto found = state.nodes.find(node);
  if (found == state.nodes.end() || !TakesRanks(found->second)) return 0;
  const std::map<std::string, int> used = UsedSlots(state);
  const auto taken = used.find(node);
  return std::max(0, found->second.hello.devices() - (taken == used.end() ? 0 : taken->second));
}

std::vector<v1::RankSlot> Stepper::FreeDevices(int most, const std::set<std::string>& avoided,
                                               int* total) const {
  const std::map<std::string, int> used = UsedSlots(state_);
  std::vector<v1::RankSlot> slots;
  *total = 0;
  for (const auto& [name, node] : state_.nodes) {
    if (!TakesRanks(node) || avoided.contains(name)) continue;
    *total += node.hello.devices();
    const auto taken = used.find(name);
    const int free = node.hello.devices() - (taken == used.end() ? 0 : taken->second);
    for (int i = 0; i < free && static_cast<int>(slots.size()) < most; ++i) {
      v1::RankSlot& slot = slots.emplace_back();
      slot.set_node(name);
      slot.set_device(i);
    }
  }
  return slots;
}

// A job that does not fit waits, and those behind it wait with it.
void Stepper::Schedule() {
  std::vector<JobState*> queued;
  bool due = reschedule_;
  for (auto& [id, job] : state_.jobs) {
    const v1::JobRecord& record = job.record;
    if (record.phase() != v1::JOB_PHASE_QUEUED) continue;
    queued.push_back(&job);
    if (reschedule_) job.tried_to_shrink = false;
    const v1::FaultToleranceSpec& wanted = record.spec().fault_tolerance();
    due |= wanted.elastic_min_ranks() > 0 && record.waiting_since() > 0 && !job.tried_to_shrink &&
           now_ - record.waiting_since() >= wanted.elastic_wait_seconds();
  }
  if (!due) return;
  std::sort(queued.begin(), queued.end(), [](const JobState* a, const JobState* b) {
    return a->record.number() < b->record.number();
  });
  for (JobState* job : queued) {
    if (!Assign(*job)) return;
  }
}

bool Stepper::Assign(JobState& job) {
  v1::JobRecord& record = job.record;
  const int ranks = plan::RanksOfJob(record.spec());
  int total = 0;
  std::vector<v1::RankSlot> slots = FreeDevices(ranks, job.avoided, &total);
  // Slow is better than not at all.
  if (static_cast<int>(slots.size()) < ranks) slots = FreeDevices(ranks, {}, &total);
  const int free = static_cast<int>(slots.size());
  if (free < ranks) {
    if (Shrink(job, free)) return true;
    Wait(job, ranks, free, total);
    return false;
  }
  if (record.elastic_ranks() > 0) Note(job, "grown", absl::StrCat("all ", ranks, " ranks again"));
  record.set_elastic_ranks(0);
  record.clear_elastic_parallelism();
  SetSlots(job, slots);
  BeginAttempt(job);
  return true;
}

void Stepper::Wait(JobState& job, int ranks, int free, int total) {
  std::string reason =
      absl::StrCat("waiting: needs ", ranks, " devices, ", free, " are free of ", total);
  for (const auto& [name, node] : state_.nodes) {
    if (node.lost || (!node.record.drained() && !node.record.quarantined())) continue;
    absl::StrAppend(&reason, "; node ", name, " is ",
                    node.record.quarantined() ? "quarantined" : "drained");
  }
  if (job.record.error() == reason) return;
  job.record.set_error(reason);
  effects_.changed_jobs.insert(job.record.id());
}

bool Stepper::Shrink(JobState& job, int free) {
  v1::JobRecord& record = job.record;
  const v1::FaultToleranceSpec& wanted = record.spec().fault_tolerance();
  const int least = wanted.elastic_min_ranks();
  if (least <= 0 || free < least || record.waiting_since() == 0 || job.tried_to_shrink ||
      now_ - record.waiting_since() < wanted.elastic_wait_seconds()) {
    return false;
  }
  RankShare share;
  for (const auto& [name, node] : state_.nodes) {
    if (!TakesRanks(node) || node.hello.memory_bytes() <= 0 || node.hello.devices() <= 0) continue;
    share.memory_bytes =
        std::min(share.memory_bytes, node.hello.memory_bytes() / node.hello.devices());
  }
  int ranks = 0;
  const absl::StatusOr<v1::ParallelismSpec> layout =
      settings_.smaller_layout(record.spec(), least, free, share, &ranks);
  if (!layout.ok()) {
    job.tried_to_shrink = true;
    return false;
  }
  record.set_elastic_ranks(ranks);
  *record.mutable_elastic_parallelism() = *layout;
  Note(job, "shrunk",
       absl::StrCat("goes on with ", ranks, " of ", plan::RanksOfJob(record.spec()),
                    " ranks (tensor ", layout->tensor(), ", pipeline ", layout->pipeline(),
                    ", data ", layout->data(), "): no more came back within ",
                    static_cast<int64_t>(wanted.elastic_wait_seconds()), " s"));
  int total = 0;
  SetSlots(job, FreeDevices(ranks, {}, &total));
  BeginAttempt(job);
  return true;
}

void Stepper::GrowWhereRoom() {
  for (auto& [id, job] : state_.jobs) {
    const v1::JobRecord& record = job.record;
    if (record.elastic_ranks() == 0 || record.phase() != v1::JOB_PHASE_RUNNING) {
      job.room_since = 0;
      continue;
    }
    const int ranks = plan::RanksOfJob(record.spec());
    int total = 0;
    const int free = static_cast<int>(FreeDevices(ranks, {}, &total).size());
    if (free + record.slots_size() < ranks) {
      job.room_since = 0;
    } else if (job.room_since == 0) {
      job.room_since = now_;
    } else if (now_ - job.room_since >= settings_.grow_delay) {
      Move(job, absl::StrCat("there is room for all ", ranks, " ranks again"));
    }
  }
}

}  // namespace tercio::coordinator
