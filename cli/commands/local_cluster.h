// This machine as the planner sees it.
#pragma once

#include "absl/status/statusor.h"
#include "plan/planner/planner.h"
#include "proto/tercio/v1/job.pb.h"

namespace tercio::cli {

// For a job of so many ranks, on the kind of device that it names: its cores and memory, or its
// GPUs. Without a GPU, one for each rank whose memory is not known. UNAVAILABLE where a driver does
// not answer.
absl::StatusOr<coordinator::Cluster> ClusterHere(const v1::JobSpec& spec, int ranks);

}  // namespace tercio::cli
