#include "coordinator/core/placement.h"

#include <utility>

namespace tercio::coordinator {

Placement::Placement(v1::RankSlots slots) : slots_(std::move(slots)) {
  for (int rank = 0; rank < slots_.slots_size(); ++rank) nodes_[NodeOf(rank)].ranks.push_back(rank);
  // The map sorts by name, so that the indices follow from the slots alone:
  // records keep sets of nodes as bits by this index, also across a restart.
  int index = 0;
  for (auto& [name, node] : nodes_) node.index = index++;
}

int Placement::RanksOn(const std::string& node) const {
  const auto found = nodes_.find(node);
  return found == nodes_.end() ? 0 : static_cast<int>(found->second.ranks.size());
}

std::vector<std::string> Placement::NodesAfter(const std::string& node, int count) const {
  std::vector<std::string> next;
  auto at = nodes_.upper_bound(node);
  while (static_cast<int>(next.size()) < count) {
    // The names form a ring, so that every node has as many successors
    // as any other and copies of snapshots spread evenly.
    if (at == nodes_.end()) at = nodes_.begin();
    if (at == nodes_.end() || at->first == node) break;
    next.push_back((at++)->first);
  }
  return next;
}

PlacementPtr NoPlacement() {
  static const PlacementPtr none = std::make_shared<const Placement>();
  return none;
}

}  // namespace tercio::coordinator
