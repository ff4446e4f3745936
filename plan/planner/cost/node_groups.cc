#include "plan/planner/cost/node_groups.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "common/check.h"

namespace tercio::plan::cost {
namespace {

void TakeLess(double other, double* value) { *value = std::min(*value, other); }

void TakeSlower(const Link& other, Link* link) {
  // A node with one device has no link inside.
  if (other.bytes_per_second > 0) {
    link->bytes_per_second = link->bytes_per_second > 0
                                 ? std::min(link->bytes_per_second, other.bytes_per_second)
                                 : other.bytes_per_second;
  }
  link->seconds = std::max(link->seconds, other.seconds);
}

}  // namespace

ClusterModel JoinGroups(std::vector<ClusterModel> groups, const Link& joining, int interfaces) {
  TERCIO_CHECK(!groups.empty());
  if (groups.size() == 1) return std::move(groups.front());
  // The device with the fewest operations stands for all; its memory need not be the smallest.
  ClusterModel joined = *std::min_element(groups.begin(), groups.end(),
                                          [](const ClusterModel& a, const ClusterModel& b) {
                                            return a.accelerator.flops_16 < b.accelerator.flops_16;
                                          });
  joined.nodes = 0;
  for (const ClusterModel& group : groups) {
    Accelerator& device = joined.accelerator;
    TakeLess(group.accelerator.memory_bytes, &device.memory_bytes);
    TakeLess(group.accelerator.memory_bytes_per_second, &device.memory_bytes_per_second);
    TakeLess(group.host.link_bytes_per_second, &joined.host.link_bytes_per_second);
    TakeLess(group.host.memory_bytes_per_second, &joined.host.memory_bytes_per_second);
    TakeLess(group.host.disk_bytes_per_second, &joined.host.disk_bytes_per_second);
    TakeLess(group.host.memory_bytes, &joined.host.memory_bytes);
    TakeSlower(group.inside, &joined.inside);
    joined.nodes += group.nodes;
    joined.devices_per_node = std::min(joined.devices_per_node, group.devices_per_node);
    if (group.shared_devices > 0) {
      joined.shared_devices = joined.shared_devices > 0
                                  ? std::min(joined.shared_devices, group.shared_devices)
                                  : group.shared_devices;
    }
  }
  joined.between = joining;
  joined.interfaces_per_node = interfaces;
  joined.groups = std::move(groups);
  return joined;
}

int CountGroups(const ClusterModel& cluster) {
  return std::max<int>(1, static_cast<int>(cluster.groups.size()));
}

GroupRange GroupsOfRanks(const ClusterModel& cluster, int first, int count) {
  GroupRange range;
  if (cluster.groups.empty()) return range;
  TERCIO_CHECK(first >= 0 && count > 0 && first + count <= cluster.devices());
  const auto group_of = [&](int rank) {
    int group = 0;
    while (rank >= cluster.groups[static_cast<size_t>(group)].devices()) {
      rank -= cluster.groups[static_cast<size_t>(group++)].devices();
    }
    return group;
  };
  range.first = group_of(first);
  range.last = group_of(first + count - 1);
  return range;
}

ClusterModel PartOf(const ClusterModel& cluster, const GroupRange& range) {
  if (range.last - range.first + 1 == CountGroups(cluster)) return cluster;
  return JoinGroups({cluster.groups.begin() + range.first, cluster.groups.begin() + range.last + 1},
                    cluster.between, cluster.interfaces_per_node);
}

ClusterModel InOrder(const ClusterModel& cluster, const std::vector<int>& order) {
  ClusterModel ordered = cluster;
  for (size_t i = 0; i < ordered.groups.size(); ++i) {
    ordered.groups[i] = cluster.groups[static_cast<size_t>(order[i])];
  }
  return ordered;
}

std::vector<std::vector<int>> OrdersOf(const ClusterModel& cluster) {
  std::vector<int> order(static_cast<size_t>(CountGroups(cluster)));
  std::iota(order.begin(), order.end(), 0);
  std::vector<std::vector<int>> orders;
  do {
    orders.push_back(order);
  } while (std::next_permutation(order.begin(), order.end()));
  return orders;
}

}  // namespace tercio::plan::cost
