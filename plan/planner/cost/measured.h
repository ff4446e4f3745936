// From what was measured on a machine (`tercio doctor --measure`) to the cluster of the cost model.
// Pure.
#pragma once

#include "absl/status/status.h"
#include "plan/planner/cost/constants.h"
#include "plan/planner/cost/hardware.h"
#include "plan/planner/cost/recipe.h"
#include "proto/tercio/v1/figures.pb.h"
#include "proto/tercio/v1/job.pb.h"

namespace tercio::plan::cost {

// INVALID_ARGUMENT names the first figure that is missing, not a number, zero, negative, or far
// from what any machine has, and where it comes from.
absl::Status CheckFigures(const v1::MachineFigures& figures);

// How ranks with less than a core each use it: in turns, so that one has more of it while others
// wait; or with a fixed part each, for clusters of several kinds of nodes.
enum class Cores { kTakeTurns, kFixedParts };

// Nodes that are all like the measured one. A rank on CPUs has `cores_per_rank` cores, less than
// one where ranks take turns on them; on GPUs it has a GPU, and the number counts for nothing.
// Between nodes, which nobody has measured, messages travel as inside of one. The memory of a
// device is not among the figures: it counts as large, and callers set it. REQUIRES:
// CheckFigures(figures), numbers above 0.
ClusterModel MeasuredCluster(const v1::MachineFigures& figures, int nodes, int ranks_per_node,
                             double cores_per_rank, Cores cores = Cores::kTakeTurns);

// A small GPT-2, for one rank: what a measured step is put beside the model's own sum over
// operations, since kernels in turn find colder caches than one that is repeated, and steps do more
// than is counted. All rates are divided by the ratio.
v1::JobSpec ReferenceJob();

// Figures of cores that nobody has measured: those of the machine of docs/planner.md, rounded.
v1::MachineFigures AssumedCpuFigures();

// The model's constants for CPUs, before anything is measured; a measured cluster has its own.
Constants CpuConstants();

// What Tercio's trainer does on CPUs.
const Recipe& CpuRecipe();

}  // namespace tercio::plan::cost
