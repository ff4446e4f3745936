// Assigns devices: all ranks of a job or none, first come, first served.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "coordinator/core/stepper.h"
#include "plan/gpu_reserve.h"

namespace tercio::coordinator {
namespace {

using DeviceSet = std::set<int>;

void AddHeld(const Placement& placement, const Placement::Node& node, DeviceSet* taken) {
  for (const int rank : node.ranks) taken->insert(placement.DeviceOf(rank));
}

// The devices that jobs hold, by node: one pass over the ranks of all jobs, however many nodes
// there are. Views into the state.
std::map<std::string_view, DeviceSet> HeldDevices(const State& state, const JobState* without) {
  std::map<std::string_view, DeviceSet> held;
  for (const JobState* job : state.jobs.Active()) {
    if (job == without) continue;
    for (const auto& [name, node] : job->placement->nodes()) {
      AddHeld(*job->placement, node, &held[name]);
    }
  }
  return held;
}

// The numbers of the node's devices that no job holds and that are not faulty, ascending.
std::vector<int> FreeDevices(const NodeState& node, const DeviceSet& taken) {
  // Slots are numbered by the agent's hello, so that a node that
  // came back with fewer devices offers no more than it has.
  std::vector<int> free;
  for (int slot = 0; slot < node.hello.devices(); ++slot) {
    if (!taken.contains(slot) && FaultOfSlot(node, slot).empty()) free.push_back(slot);
  }
  return free;
}

const DeviceSet& HeldOf(const std::map<std::string_view, DeviceSet>& held,
                        const std::string& node) {
  // A node that no job is on has no entry; the reference must outlive the call.
  static const auto* const none = new DeviceSet();
  const auto found = held.find(node);
  return found == held.end() ? *none : found->second;
}

int FaultySlots(const NodeState& node) {
  if (node.record.device_faults().empty()) return 0;
  int faulty = 0;
  for (int slot = 0; slot < node.hello.devices(); ++slot) {
    faulty += FaultOfSlot(node, slot).empty() ? 0 : 1;
  }
  return faulty;
}

const v1::DeviceFacts& FactsOfSlot(const NodeState& node, int slot) {
  // Agents describe each GPU once, though a GPU may have several slots (common in tests).
  const int gpus = node.hello.device_facts_size();
  return gpus == 0 ? v1::DeviceFacts::default_instance() : node.hello.device_facts(slot % gpus);
}

DeviceWish WishOf(const v1::JobSpec& spec, int ranks) {
  DeviceWish wish;
  wish.ranks = ranks;
  // A layout that is still to be chosen might make a tensor group of any of the ranks.
  wish.tensor = spec.parallelism().automatic() ? 0 : std::max(1, spec.parallelism().tensor());
  wish.one_nccl = spec.resources().device() == v1::DEVICE_KIND_CUDA &&
                  spec.resources().collectives() != v1::COLLECTIVES_HOST;
  return wish;
}

// The faulty GPUs of nodes that a job could be on, a few of them by name.
std::string DescribeFaulty(const State& state, const v1::JobSpec& spec) {
  constexpr int kMostNamed = 3;
  int named = 0;
  int more = 0;
  std::string text;
  for (const auto& [name, node] : state.nodes) {
    // Devices of another kind, or of nodes that take no ranks
    // anyway, explain nothing to a person who waits.
    if (!TakesRanks(node) || !HasDevicesFor(node, spec)) continue;
    const std::map<int, std::string> faults(node.record.device_faults().begin(),
                                            node.record.device_faults().end());
    for (const auto& [device, fault] : faults) {
      if (named == kMostNamed) {
        ++more;
        continue;
      }
      ++named;
      absl::StrAppend(&text, "; GPU ", device, " of node ", name, " is faulty: ", fault);
    }
  }
  if (more > 0) absl::StrAppend(&text, "; and ", more, " more GPUs");
  return text;
}

// Agents of versions without GPU support send no kind.
v1::DeviceKind KindOr(v1::DeviceKind kind) {
  return kind == v1::DEVICE_KIND_UNSPECIFIED ? v1::DEVICE_KIND_CPU : kind;
}

}  // namespace

bool HasDevicesFor(const NodeState& node, const v1::JobSpec& spec) {
  return KindOr(node.hello.device_kind()) == KindOr(spec.resources().device());
}

int64_t MemoryOfRank(const v1::AgentHello& hello, int ranks) {
  if (hello.device_facts_size() == 0) {
    // Ranks in CPU slots share the memory of the node; GPUs have their own.
    return hello.memory_bytes() > 0 && ranks > 0 ? hello.memory_bytes() / ranks : kUnknownMemory;
  }
  int64_t least = kUnknownMemory;
  for (const v1::DeviceFacts& facts : hello.device_facts()) {
    if (facts.memory_bytes() > 0) least = std::min(least, facts.memory_bytes());
  }
  // Slots beyond the GPUs share them.
  const int shared = (hello.devices() + hello.device_facts_size() - 1) / hello.device_facts_size();
  // The context of CUDA and its libraries lie in the memory of a GPU, too.
  return least == kUnknownMemory ? least : (least - plan::kGpuContextBytes) / std::max(1, shared);
}

bool SharesGpus(const v1::AgentHello& hello) {
  return hello.device_facts_size() > 0 && hello.devices() > hello.device_facts_size();
}

std::string FaultOfSlot(const NodeState& node, int slot) {
  // Slots beyond the GPUs share them.
  const int gpus = std::max(1, node.hello.device_facts_size());
  const auto found = node.record.device_faults().find(slot % gpus);
  return found == node.record.device_faults().end() ? "" : found->second;
}

bool TakesRanks(const NodeState& node) {
  return node.connected && !node.lost && !node.record.leaving() && !node.record.drained() &&
         !node.record.quarantined();
}

int FreeSlots(const State& state, const std::string& node) {
  const auto found = state.nodes.find(node);
  if (found == state.nodes.end() || !TakesRanks(found->second)) return 0;
  DeviceSet taken;
  // For one node only its own ranks are looked at; the other overload pays for a full pass.
  for (const JobState* job : state.jobs.Active()) {
    const auto held = job->placement->nodes().find(node);
    if (held != job->placement->nodes().end()) AddHeld(*job->placement, held->second, &taken);
  }
  return static_cast<int>(FreeDevices(found->second, taken).size());
}

std::map<std::string, int> FreeSlots(const State& state) {
  const auto held = HeldDevices(state, nullptr);
  std::map<std::string, int> free;
  for (const auto& [name, node] : state.nodes) {
    free[name] =
        TakesRanks(node) ? static_cast<int>(FreeDevices(node, HeldOf(held, name)).size()) : 0;
  }
  return free;
}

std::vector<FreeDevice> Stepper::FreeDevicesFor(const v1::JobSpec& spec, const Avoided& avoided,
                                                const JobState* without) const {
  const auto held = HeldDevices(state_, without);
  std::vector<FreeDevice> free;
  for (const auto& [name, node] : state_.nodes) {
    if (!TakesRanks(node) || !HasDevicesFor(node, spec) || avoided.nodes.contains(name)) continue;
    for (const int slot : FreeDevices(node, HeldOf(held, name))) {
      if (avoided.devices.contains({name, slot})) continue;
      const v1::DeviceFacts& facts = FactsOfSlot(node, slot);
      free.push_back({name, slot, facts.model(), facts.nccl()});
    }
  }
  return free;
}

// Devices of all known nodes, whatever holds them and whatever state the nodes are in.
std::vector<FreeDevice> Stepper::KnownDevicesFor(const v1::JobSpec& spec) const {
  std::vector<FreeDevice> known;
  for (const auto& [name, node] : state_.nodes) {
    if (!HasDevicesFor(node, spec)) continue;
    for (int slot = 0; slot < node.hello.devices(); ++slot) {
      const v1::DeviceFacts& facts = FactsOfSlot(node, slot);
      known.push_back({name, slot, facts.model(), facts.nccl()});
    }
  }
  return known;
}

DeviceWish Stepper::WishFor(const v1::JobSpec& spec, int ranks) const {
  DeviceWish wish = WishOf(spec, ranks);
  if (wish.tensor > 0) return wish;
  // Devices in use count as well: it is better to wait for devices that are alike.
  wish.mixes = ChooseDevices(KnownDevicesFor(spec), wish).empty();
  return wish;
}

Stepper::Room Stepper::RoomBeside(const v1::JobSpec& spec, const Avoided& avoided) const {
  Room room;
  room.free = static_cast<int>(FreeDevicesFor(spec, avoided).size());
  for (const auto& [name, node] : state_.nodes) {
    // The total says what the job could get when others end, so it includes devices in use.
    if (!TakesRanks(node) || !HasDevicesFor(node, spec) || avoided.nodes.contains(name)) continue;
    room.total += node.hello.devices() - FaultySlots(node);
  }
  return room;
}

PlacementPtr Stepper::TakeDevices(const v1::JobSpec& spec, int ranks,
                                  const Avoided& avoided) const {
  v1::RankSlots slots;
  for (const FreeDevice& device :
       ChooseDevices(FreeDevicesFor(spec, avoided), WishFor(spec, ranks))) {
    v1::RankSlot* slot = slots.add_slots();
    slot->set_node(std::string(device.node));
    slot->set_device(device.device);
  }
  return std::make_shared<const Placement>(std::move(slots));
}

// A job that does not fit waits, and those behind it that want the same kind of device wait with
// it, unless it waits for a larger cluster.
void Stepper::Schedule() {
  // Conditions that only time changes are checked when time passes, not with each of a thousand
  // messages.
  if (!reschedule_ && !std::holds_alternative<Tick>(event_.body)) return;
  std::vector<JobState*> queued;
  bool due = reschedule_;
  for (JobState* const active : state_.jobs.Active()) {
    JobState& job = *active;
    const v1::JobRecord& record = job.record;
    if (record.phase() != v1::JOB_PHASE_QUEUED) continue;
    queued.push_back(&job);
    // The devices have changed since a smaller layout was last looked for unsuccessfully.
    if (reschedule_) job.tried_to_shrink = false;
    const v1::FaultToleranceSpec& wanted = record.spec().fault_tolerance();
    // These two become due by time alone, so that no event announces them.
    due |= wanted.elastic_min_ranks() > 0 && record.waiting_since() > 0 && !job.tried_to_shrink &&
           now_ - record.waiting_since() >= wanted.elastic_wait_seconds();
    due |= job.too_large_since > 0 && !job.may_be_skipped &&
           now_ - job.too_large_since >= settings_.pass_delay;
  }
  if (!due) return;
  // Numbers are given in the order of submission: a job that was restarted keeps its turn.
  std::sort(queued.begin(), queued.end(), [](const JobState* a, const JobState* b) {
    return a->record.number() < b->record.number();
  });
  std::set<v1::DeviceKind> waited_for;
  for (JobState* job : queued) {
    const v1::DeviceKind kind = KindOr(job->record.spec().resources().device());
    if (!waited_for.contains(kind) && !Assign(*job) && !MayBeSkipped(*job)) {
      waited_for.insert(kind);
    }
  }
}

// Never for a job that has run: its place is kept until it is back. Not immediately: the nodes of a
// starting cluster connect one after the other.
bool Stepper::MayBeSkipped(JobState& job) {
  const v1::JobSpec& spec = job.record.spec();
  job.may_be_skipped = false;
  if (job.record.attempt() > 0 ||
      !ChooseDevices(KnownDevicesFor(spec), WishFor(spec, plan::RanksOfJob(spec))).empty()) {
    job.too_large_since = 0;
    return false;
  }
  if (job.too_large_since == 0) job.too_large_since = now_;
  job.may_be_skipped = now_ - job.too_large_since >= settings_.pass_delay;
  return job.may_be_skipped;
}

bool Stepper::Assign(JobState& job) {
  v1::JobRecord& record = job.record;
  const int ranks = plan::RanksOfJob(record.spec());
  // Slow is better than not at all.
  PlacementPtr placement = NoPlacement();
  if (!job.avoided.empty()) placement = TakeDevices(record.spec(), ranks, job.avoided);
  if (placement->ranks() == 0) placement = TakeDevices(record.spec(), ranks, {});
  if (placement->ranks() == 0) {
    if (Shrink(job, RoomBeside(record.spec(), {}).free)) return true;
    Wait(job, ranks);
    return false;
  }
  if (record.elastic_ranks() > 0) {
    Note(job, "grown", absl::StrCat("back to all ", ranks, " ranks"));
    // The durations of fewer ranks say nothing about the time that is left.
    record.clear_recent_step_seconds();
  }
  record.set_elastic_ranks(0);
  record.clear_elastic_parallelism();
  Place(job, std::move(placement));
  BeginAttempt(job);
  return true;
}

void Stepper::Wait(JobState& job, int ranks) {
  const v1::JobSpec& spec = job.record.spec();
  const Room room = RoomBeside(spec, {});
  std::string reason =
      absl::StrCat("waiting: needs ", ranks,
                   spec.resources().device() == v1::DEVICE_KIND_CUDA ? " GPUs, " : " devices, ",
                   room.free, " of ", room.total, " are free");
  const std::string why = WhyNoDevices(FreeDevicesFor(spec, {}), WishFor(spec, ranks));
  if (!why.empty()) absl::StrAppend(&reason, "; ", why);
  absl::StrAppend(&reason, DescribeFaulty(state_, spec));
  for (const auto& [name, node] : state_.nodes) {
    if (node.lost || (!node.record.drained() && !node.record.quarantined())) continue;
    absl::StrAppend(&reason, "; node ", name, " is ",
                    node.record.quarantined() ? "quarantined" : "drained");
  }
  // An unchanged reason is not written again: this runs at every tick for every waiting job.
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
  // Which nodes the ranks get is known only after the layout, so the least share of all counts.
  for (const auto& [name, node] : state_.nodes) {
    if (!TakesRanks(node) || !HasDevicesFor(node, record.spec())) continue;
    share.memory_bytes =
        std::min(share.memory_bytes, MemoryOfRank(node.hello, node.hello.devices()));
    share.shares_gpus = share.shares_gpus || SharesGpus(node.hello);
  }
  int ranks = 0;
  const absl::StatusOr<v1::ParallelismSpec> layout =
      settings_.smaller_layout(record.spec(), least, free, share, &ranks);
  if (!layout.ok()) {
    // The search for a layout is long and its result stays until the devices change.
    job.tried_to_shrink = true;
    return false;
  }
  v1::JobSpec smaller = record.spec();
  *smaller.mutable_parallelism() = *layout;
  PlacementPtr placement = TakeDevices(smaller, ranks, {});
  if (placement->ranks() == 0) {
    job.tried_to_shrink = true;
    return false;
  }
  if (record.elastic_ranks() != ranks) record.clear_recent_step_seconds();
  record.set_elastic_ranks(ranks);
  *record.mutable_elastic_parallelism() = *layout;
  Note(job, "shrunk",
       absl::StrCat("continues with ", ranks, " of ", plan::RanksOfJob(record.spec()),
                    " ranks (tensor ", layout->tensor(), ", pipeline ", layout->pipeline(),
                    ", data ", layout->data(), "): no more came back within ",
                    static_cast<int64_t>(wanted.elastic_wait_seconds()), " s"));
  Place(job, std::move(placement));
  BeginAttempt(job);
  return true;
}

void Stepper::GrowWhereRoom() {
  for (JobState* const active : state_.jobs.Active()) {
    JobState& job = *active;
    const v1::JobRecord& record = job.record;
    if (record.elastic_ranks() == 0 || record.phase() != v1::JOB_PHASE_RUNNING) {
      job.room_since = 0;
      continue;
    }
    const int ranks = plan::RanksOfJob(record.spec());
    // The job's own devices count as free, since it gives them up when it moves.
    const std::vector<FreeDevice> free = FreeDevicesFor(record.spec(), {}, &job);
    if (ChooseDevices(free, WishFor(record.spec(), ranks)).empty()) {
      job.room_since = 0;
    } else if (job.room_since == 0) {
      job.room_since = now_;
    } else if (now_ - job.room_since >= settings_.grow_delay) {
      // Nodes that come and go would make the job move each time, so the room has to last.
      Move(job, absl::StrCat("there is room for all ", ranks, " ranks again"));
    }
  }
}

}  // namespace tercio::coordinator
