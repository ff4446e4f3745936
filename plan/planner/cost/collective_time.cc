#include "plan/planner/cost/collective_time.h"

#include <algorithm>
#include <cmath>

namespace tercio::plan::cost {

CollectiveTime::CollectiveTime(const ClusterModel& cluster, const Constants& constants)
    : cluster_(cluster), constants_(constants) {}

CollectiveTime::Path CollectiveTime::PathOf(const Group& group) const {
  Path path;
  const int in_node = std::max(1, cluster_.devices_per_node / std::max(1, group.stride));
  path.per_node = std::min(group.size, in_node);
  path.nodes = (group.size + path.per_node - 1) / path.per_node;
  path.bytes_per_second = cluster_.inside.bytes_per_second * constants_.link_share;
  path.seconds = cluster_.inside.seconds;
  if (path.nodes == 1) return path;
  // A ring leaves each node once; the rings of all groups on the node share its interfaces.
  const double rings = static_cast<double>(cluster_.devices_per_node) / path.per_node;
  const double network = cluster_.between.bytes_per_second * cluster_.interfaces_per_node *
                         constants_.network_share / rings;
  path.bytes_per_second = path.per_node == 1 ? network : std::min(path.bytes_per_second, network);
  path.seconds = std::max(path.seconds, cluster_.between.seconds);
  return path;
}

// All ranks send a part to the next one, size - 1 times.
double CollectiveTime::RingPass(const Group& group, double bytes, double messages) const {
  const Path path = PathOf(group);
  const double steps = group.size - 1;
  return steps * (messages * path.seconds + bytes / group.size / path.bytes_per_second);
}

double CollectiveTime::AllGather(const Group& group, double bytes, double messages) const {
  return group.size <= 1 ? 0 : RingPass(group, bytes, messages);
}

double CollectiveTime::ReduceScatter(const Group& group, double bytes, double messages) const {
  return group.size <= 1 ? 0 : RingPass(group, bytes, messages);
}

double CollectiveTime::AllReduce(const Group& group, double bytes, double messages) const {
  if (group.size <= 1) return 0;
  const Path path = PathOf(group);
  const double ring = 2 * RingPass(group, bytes, messages);
  // A double binary tree between nodes has the same volume, and the depth of a tree (NCCL 2.4).
  const double depth = std::log2(static_cast<double>(path.nodes)) * path.seconds +
                       (path.per_node - 1) * cluster_.inside.seconds;
  const double tree = 2 * messages * depth + 2 * bytes / path.bytes_per_second;
  return path.nodes > 1 ? std::min(ring, tree) : ring;
}

double CollectiveTime::Transfer(int stride, int stages, double bytes) const {
  if (stages <= 1 || bytes <= 0) return 0;
  // The slowest boundary decides, which leaves the node wherever any does.
  const bool leaves = stride * stages > cluster_.devices_per_node;
  if (!leaves) {
    return cluster_.inside.seconds +
           bytes / (cluster_.inside.bytes_per_second * constants_.link_share);
  }
  // Where a node holds several stages, only those at its edge send on the network.
  const double senders = std::min(stride, cluster_.devices_per_node);
  const double network =
      std::min(cluster_.between.bytes_per_second,
               cluster_.between.bytes_per_second * cluster_.interfaces_per_node / senders);
  return cluster_.between.seconds + bytes / (network * constants_.network_share);
}

}  // namespace tercio::plan::cost
