#include "coordinator/core/snapshots.h"

#include <algorithm>

namespace tercio::coordinator {
namespace {

// Nodes keep two: the one before stays until all ranks have finished the newest.
constexpr size_t kMostOfRank = 2;

}  // namespace

void HeldSnapshots::Add(const std::string& job, int rank, SnapshotId id) {
  std::set<SnapshotId>& ids = jobs_[job][rank];
  ids.insert(id);
  if (ids.size() > kMostOfRank) ids.erase(ids.begin());
}

const HeldSnapshots::Ranks& HeldSnapshots::Of(const std::string& job) const {
  // The reference must outlive the call, and jobs without snapshots are the most.
  static const auto* const kNone = new Ranks;
  const auto found = jobs_.find(job);
  return found == jobs_.end() ? *kNone : found->second;
}

std::optional<SnapshotChoice> NewestComplete(
    const std::string& job, const std::vector<std::string>& placed,
    const std::map<std::string, const HeldSnapshots*>& nodes,
    const std::function<bool(const SnapshotId&)>& counts) {
  std::map<SnapshotId, std::map<int, std::string>> sources;
  for (const auto& [name, held] : nodes) {
    for (const auto& [rank, ids] : held->Of(job)) {
      // Copies may be of an attempt on more ranks than the present one has.
      if (rank < 0 || rank >= static_cast<int>(placed.size())) continue;
      for (const SnapshotId& id : ids) {
        std::string& source = sources[id][rank];
        // A copy on the rank's own node need not cross the network.
        if (source.empty() || placed[static_cast<size_t>(rank)] == name) source = name;
      }
    }
  }
  std::optional<SnapshotChoice> choice;
  for (const auto& [id, of_ranks] : sources) {
    // A snapshot is of use only as a whole: without one of its ranks there is no state to load.
    if (of_ranks.size() != placed.size() || !counts(id)) continue;
    if (choice.has_value() && id.step <= choice->id.step) continue;
    choice = SnapshotChoice{id, {}};
    for (const auto& [rank, source] : of_ranks) choice->sources.push_back(source);
  }
  return choice;
}

}  // namespace tercio::coordinator
