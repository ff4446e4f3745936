// This machine as the planner sees it.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "cli/commands/kept_figures.h"
#include "common/gpus/gpus.h"
#include "plan/planner/planner.h"
#include "proto/tercio/v1/figures.pb.h"
#include "proto/tercio/v1/job.pb.h"

namespace tercio::cli {

struct ClusterHere {
  plan::Cluster cluster;
  // Which GPUs the plan is for and how much of their memory a rank may use, in words; empty for
  // CPUs.
  std::string gpus;
  std::string model;  // this machine's GPUs; empty: none, or not known
  // Whether times follow from what was measured here, in words; empty: nothing was (KeptFigures).
  std::string measured;
};

// The figures that are kept of the devices of this machine that the job is for.
KeptFigures FiguresHere(const v1::JobSpec& spec, const Gpus& gpus);

// The machine's cores and memory, or its GPUs (the kind of device that the job names), shared by
// `ranks` ranks, with the figures that are kept of them. UNAVAILABLE where a driver does not
// answer.
absl::StatusOr<ClusterHere> FindClusterHere(const v1::JobSpec& spec, int ranks);

// The same for the ranks of `cluster` on these GPUs, which ranks share where there are fewer GPUs.
// Without a GPU each rank has a plan::kAssumedGpu to itself. `figures`: what was measured of them;
// without products nothing was. Pure.
ClusterHere OnGpusHere(const Gpus& gpus, const v1::MachineFigures& figures, plan::Cluster cluster);

}  // namespace tercio::cli
