// `tercio plan --cluster --svg` and `--timeline`: one step of the best layout in time, as a drawing
// and as the file that `tercio run --trace` writes of a measured step.
#pragma once

#include "absl/status/status.h"
#include "cli/commands/cluster_plan.h"

namespace tercio::cli {

// Writes the files that the options name, if any, of the best layout that fits, if any. Errors say
// which file, and what to do.
absl::Status WriteTimelines(const ClusterPlan& plan, const PlanOptions& options);

}  // namespace tercio::cli
