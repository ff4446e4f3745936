// Clusters whose nodes are of several kinds: which kinds the ranks of a stage are on, and what
// those ranks reach. Ranks are numbered through the groups in their order; stages are ranges of
// ranks (plan/rank_layout.h), so that the order of the groups decides which stages are where. Pure.
#pragma once

#include <vector>

#include "plan/planner/cost/hardware.h"

namespace tercio::plan::cost {

// The most kinds of nodes that a cluster may have: all of their orders are tried.
inline constexpr int kMostGroups = 4;

// A cluster of these groups. Its own figures are those that ranks reach which are on all of them:
// the least of each, and between nodes the link that joins the groups. REQUIRES: a group.
ClusterModel JoinGroups(std::vector<ClusterModel> groups, const Link& joining, int interfaces);

// Groups first ... last of a cluster.
struct GroupRange {
  int first = 0;
  int last = 0;

  bool operator==(const GroupRange&) const = default;
};

// 1 where all nodes are alike.
int CountGroups(const ClusterModel& cluster);
// The groups that these ranks are on. REQUIRES: 0 <= first, 0 < count, first + count <= devices().
GroupRange GroupsOfRanks(const ClusterModel& cluster, int first, int count);
// The cluster of these groups alone.
ClusterModel PartOf(const ClusterModel& cluster, const GroupRange& range);
// The same groups in another order: order[i] says which one is the i-th.
ClusterModel InOrder(const ClusterModel& cluster, const std::vector<int>& order);
// All orders of the groups, that of the cluster first; a cluster of one kind has one.
std::vector<std::vector<int>> OrdersOf(const ClusterModel& cluster);

}  // namespace tercio::plan::cost
