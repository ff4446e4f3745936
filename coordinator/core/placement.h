// The placement of an attempt: which device each rank has, and which ranks each node has. Made
// once when devices are given out and never changed after, so that its holders share it and read it
// without a lock. Operations on one node cost time in the ranks of that node, not of the job.
//
// Pure. REQUIRES of every argument named rank: 0 <= rank < ranks().
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "proto/tercio/v1/state.pb.h"

namespace tercio::coordinator {

class Placement {
 public:
  struct Node {
    int index = 0;           // among the nodes, by name: what sets of nodes in a record are made of
    std::vector<int> ranks;  // ascending
  };

  // The placement of a job that holds no devices.
  Placement() = default;
  explicit Placement(v1::RankSlots slots);

  int ranks() const { return slots_.slots_size(); }
  const std::string& NodeOf(int rank) const { return slots_.slots(rank).node(); }
  int DeviceOf(int rank) const { return slots_.slots(rank).device(); }
  const std::map<std::string, Node>& nodes() const { return nodes_; }
  bool Has(const std::string& node) const { return nodes_.contains(node); }
  int RanksOn(const std::string& node) const;
  // `count` nodes, or all others, that come after this one in the ring of the names.
  std::vector<std::string> NodesAfter(const std::string& node, int count) const;

  // As it is stored.
  const v1::RankSlots& slots() const { return slots_; }

 private:
  v1::RankSlots slots_;  // by rank
  std::map<std::string, Node> nodes_;
};

// Never null.
using PlacementPtr = std::shared_ptr<const Placement>;
PlacementPtr NoPlacement();

}  // namespace tercio::coordinator
