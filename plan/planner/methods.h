// The largest model of a job's family (plan/planner/largest.h) that a cluster can train with each
// method by itself: what each of them is worth. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "plan/planner/cost/hardware.h"
#include "plan/planner/largest.h"
#include "proto/tercio/v1/job.pb.h"
#include "proto/tercio/v1/plan.pb.h"

namespace tercio::plan {

struct MethodLimit {
  std::string method;  // "data parallel, zero_stage 1"
  v1::Layout layout;
  std::optional<LargestModel> largest;  // nullopt: not even the smallest of the family fits
};

// Replicas, divided states, tensor ranks within a node with and without divided sequences, and
// those with as many pipeline stages as let the largest model fit; each with and without full
// recomputation, on all devices, with micro-batches of one sequence. REQUIRES:
// CheckCluster(cluster), a job whose vocabulary is known.
std::vector<MethodLimit> LargestByMethod(const v1::JobSpec& job, const cost::ClusterModel& cluster);

}  // namespace tercio::plan
