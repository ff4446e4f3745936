// GPUs of the nodes: which fail, what agents say of them, and that no rank is put on one of which
// the coordinator has heard that it is faulty.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/simulation/world.h"

namespace tercio::simulation {

using coordinator::Effects;
using coordinator::Event;

void World::FaultOfGpus(const std::string& name, Node& node) {
  if (!Chance(0.02)) return;
  const int gpu = Chance(0.5) ? 1 : 0;
  if (node.gpu_faults.erase(gpu) == 0) {
    const bool lost = Chance(0.5);
    node.gpu_faults[gpu] = {absl::StrCat("fault ", next_number_++), lost};
    for (auto& [key, trainer] : node.trainers) {
      const auto run = node.state.runs.find(key.first);
      if (!lost || run == node.state.runs.end() || !run->second.ranks.contains(key.second))
        continue;
      // It waits for its GPU for ever.
      const int device = run->second.ranks.at(key.second).plan.placement().device();
      if (device == gpu) trainer.frozen |= trainer.alive;
    }
  }
  Heartbeat(name);
}

void World::SayGpus(const Node& node, v1::AgentHello* hello) {
  for (int gpu = 0; gpu < kDevices; ++gpu) {
    v1::DeviceFacts* facts = hello->add_device_facts();
    const auto fault = node.gpu_faults.find(gpu);
    if (fault != node.gpu_faults.end()) facts->set_fault(fault->second.first);
  }
}

void World::SayGpus(const Node& node, v1::AgentHeartbeat* heartbeat) {
  for (const auto& [gpu, fault] : node.gpu_faults) {
    v1::DeviceFault* said = heartbeat->add_device_faults();
    said->set_device(gpu);
    said->set_fault(fault.first);
    said->set_ends_runs(fault.second);
  }
}

// Before the coordinator takes the event.
void World::HearGpus(const Event& event) {
  if (const auto* attached = std::get_if<coordinator::NodeAttached>(&event.body)) {
    const std::string& name = attached->hello.node();
    faulty_[name].clear();
    lost_[name].clear();
    for (int gpu = 0; gpu < attached->hello.device_facts_size(); ++gpu) {
      if (!attached->hello.device_facts(gpu).fault().empty()) faulty_[name].insert(gpu);
    }
  }
  const auto* said = std::get_if<coordinator::NodeSaid>(&event.body);
  if (said == nullptr || !said->message.has_heartbeat()) return;
  const auto node = state_.nodes.find(said->node);
  if (node == state_.nodes.end() || node->second.lost) return;
  faulty_[said->node].clear();
  lost_[said->node].clear();
  for (const v1::DeviceFault& fault : said->message.heartbeat().device_faults()) {
    faulty_[said->node].insert(fault.device());
    if (fault.ends_runs()) lost_[said->node].insert(fault.device());
  }
}

void World::CheckGpus(const Effects& effects) {
  for (const auto& [id, job] : state_.jobs) {
    const v1::JobPhase phase = job.record.phase();
    const bool placed = phase == v1::JOB_PHASE_PREPARING && effects.changed_placements.contains(id);
    const bool runs = phase == v1::JOB_PHASE_STARTING || phase == v1::JOB_PHASE_RUNNING;
    if (!placed && !runs) continue;
    for (int rank = 0; rank < job.placement->ranks(); ++rank) {
      const std::string& node = job.placement->NodeOf(rank);
      const int gpu = job.placement->DeviceOf(rank);
      if ((placed && faulty_[node].contains(gpu)) || (runs && lost_[node].contains(gpu))) {
        Wrong(absl::StrCat(id, ": rank ", rank, placed ? " is put" : " runs", " on GPU ", gpu,
                           " of ", node, ", which is faulty"));
      }
    }
  }
}

}  // namespace tercio::simulation
