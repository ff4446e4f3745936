// GPUs that get no ranks, as their agents report.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "coordinator/core/stepper.h"

namespace tercio::coordinator {
namespace {

std::string NameOf(const NodeState& node, int device) {
  std::string name = absl::StrCat("GPU ", device);
  if (device >= 0 && device < node.hello.device_facts_size()) {
    const v1::DeviceFacts& facts = node.hello.device_facts(device);
    if (facts.model().empty()) return name;
    absl::StrAppend(&name, " (", facts.model(), ", ", facts.uuid(), ")");
  }
  return name;
}

}  // namespace

void Stepper::OnDeviceFaults(const std::string& name, const DeviceFaults& faults,
                             const std::set<int>& lost) {
  NodeState& node = state_.nodes.at(name);
  const DeviceFaults before(node.record.device_faults().begin(), node.record.device_faults().end());
  // Agents repeat all faults with every heartbeat; only changes are news.
  if (faults != before) {
    for (const auto& [device, fault] : faults) {
      const auto known = before.find(device);
      if (known != before.end() && known->second == fault) continue;
      NoteNode(name, "device_faulty", absl::StrCat(NameOf(node, device), ": ", fault));
    }
    for (const auto& [device, fault] : before) {
      if (faults.contains(device)) continue;
      NoteNode(name, "device_recovered", absl::StrCat(NameOf(node, device), " is available again"));
    }
    node.record.clear_device_faults();
    for (const auto& [device, fault] : faults) {
      (*node.record.mutable_device_faults())[device] = fault;
    }
    effects_.changed_nodes.insert(name);
    // A device that has recovered may be what a waiting job needs.
    reschedule_ = true;
  }
  if (!faults.empty()) EndRunsOn(name, faults, lost);
}

// A job that has not started yet moves to other devices. Ranks that run on a lost GPU would find
// out themselves, if only by waiting for it forever.
void Stepper::EndRunsOn(const std::string& name, const DeviceFaults& faults,
                        const std::set<int>& lost) {
  const NodeState& node = state_.nodes.at(name);
  // Agents without GPUs describe none; slots beyond the GPUs share them.
  const int gpus = std::max(1, node.hello.device_facts_size());
  for (JobState* const active : state_.jobs.Active()) {
    JobState& job = *active;
    const v1::JobPhase phase = job.record.phase();
    if (!HoldsSlots(phase) || phase == v1::JOB_PHASE_STOPPING) continue;
    const auto place = job.placement->nodes().find(name);
    if (place == job.placement->nodes().end()) continue;
    const std::vector<int>& ranks = place->second.ranks;
    const auto hit = std::find_if(ranks.begin(), ranks.end(), [&](int rank) {
      const int device = job.placement->DeviceOf(rank) % gpus;
      // Ranks that run stay on a GPU with a lesser fault:
      // ending them would lose more than it saves.
      return phase == v1::JOB_PHASE_PREPARING ? faults.contains(device) : lost.contains(device);
    });
    if (hit == ranks.end()) continue;
    const int device = job.placement->DeviceOf(*hit) % gpus;
    const std::string what = absl::StrCat(NameOf(node, device), " of node ", name,
                                          ", used by rank ", *hit, ": ", faults.at(device));
    if (phase == v1::JOB_PHASE_PREPARING) {
      Move(job, what);
    } else {
      Fault(job, {FaultCause::kDevice, what, false, ""});
    }
  }
}

}  // namespace tercio::coordinator
