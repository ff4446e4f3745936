// `tercio plan --cluster`: the layouts of a job on a cluster that is described in a file, with
// where time and memory of the best go, and what a run costs. Pure, but for PlanOnCluster.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/commands/commands.h"
#include "config/cluster_file.h"
#include "nlohmann/json.hpp"
#include "plan/planner/methods.h"
#include "plan/planner/search.h"
#include "proto/tercio/v1/job.pb.h"

namespace tercio::cli {

// The best layout of as many devices.
struct ScalePoint {
  int devices = 0;
  int64_t global_batch = 0;
  std::optional<plan::RankedLayout> best;  // nullopt: none fits
};

struct ClusterPlan {
  v1::JobSpec job;
  config::ClusterFile file;
  plan::SearchResult found;
  double tokens = 0;  // tokens to train, for the cost estimate; 0: no estimate
  std::vector<ScalePoint> scale;
  std::vector<plan::MethodLimit> largest;
  // The two layouts of --compare.
  std::vector<plan::RankedLayout> compared;
};

// INVALID_ARGUMENT: a filter, a number of devices, or nothing that fits it.
absl::StatusOr<ClusterPlan> MakeClusterPlan(const v1::JobSpec& job, config::ClusterFile file,
                                            const PlanOptions& options);

// The cluster with its kinds of nodes in the order of the layout.
plan::cost::ClusterModel ClusterOf(const ClusterPlan& plan, const plan::RankedLayout& ranked);

std::string ClusterPlanText(const ClusterPlan& plan);
nlohmann::ordered_json ClusterPlanJson(const ClusterPlan& plan);

// Prints it; the verb's exit code. `spec`: with its vocabulary.
absl::StatusOr<int> PlanOnCluster(const v1::JobSpec& spec, const PlanOptions& options);

}  // namespace tercio::cli
