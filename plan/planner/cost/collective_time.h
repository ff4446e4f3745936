// Seconds of collectives and messages over two levels: links inside a node, the network between
// nodes, whose interfaces the devices of a node share. Pure.
#pragma once

#include "plan/planner/cost/constants.h"
#include "plan/planner/cost/hardware.h"

namespace tercio::plan::cost {

// Ranks first, first + stride, ... of the grid (plan/rank_layout.h). The other ranks form groups of
// the same kind, and all groups communicate at the same time.
struct Group {
  int size = 1;
  int stride = 1;
};

class CollectiveTime {
 public:
  CollectiveTime(const ClusterModel& cluster, const Constants& constants);

  // `bytes` of the whole value, which each rank has before (sum, scatter) or after (gather).
  double AllReduce(const Group& group, double bytes, double messages = 1) const;
  double AllGather(const Group& group, double bytes, double messages = 1) const;
  double ReduceScatter(const Group& group, double bytes, double messages = 1) const;
  // From each rank of a stage to the same rank of the next, `stride` further on, for any of
  // `stages` stages.
  double Transfer(int stride, int stages, double bytes) const;

 private:
  struct Path {
    double bytes_per_second = 0;  // of each step of a ring
    double seconds = 0;
    int nodes = 1;
    int per_node = 1;
  };
  Path PathOf(const Group& group) const;
  double RingPass(const Group& group, double bytes, double messages) const;

  ClusterModel cluster_;
  Constants constants_;
};

}  // namespace tercio::plan::cost
