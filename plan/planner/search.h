// All layouts of a job on a cluster, by the time of their steps: tensor x pipeline x virtual
// pipeline x data degrees, micro-batch, recomputation, sequence parallelism, division of the state
// over all data ranks or in groups of them; and, of those that do not fit, the ones that would with
// a part of the optimizer's state on the host (plan/planner/offload_choice.h). Time is that of
// plan/planner/cost/step_cost.h, memory the trainer's own table. Pure.
//
// Where nodes are of several kinds, all orders of them are searched, since ranks are numbered
// through them: an order decides which stages are where. Beside equally many layers, stages then
// also get as many as makes the slowest of them as fast as can be.
//
// Layouts are judged in the order of a bound of their time. Where that alone, or with a bound of
// memory, shows that a layout is neither among the fastest that fit nor among those too large that
// are wanted, nothing else of it is computed. The result is that of a search that computes all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "plan/planner/cost/hardware.h"
#include "plan/planner/cost/recipe.h"
#include "plan/planner/cost/step_cost.h"
#include "proto/tercio/v1/job.pb.h"
#include "proto/tercio/v1/plan.pb.h"

namespace tercio::plan {

struct RankedLayout {
  v1::Layout layout;
  // The order of the cluster's groups (cost::InOrder), where nodes are of several kinds; else
  // empty.
  std::vector<int> order = {};
  cost::StepCost cost;
  // The memory of the rank that lacks most, or has least left.
  int64_t memory_bytes = 0;
  int64_t available_bytes = 0;
  // The host's memory: what the rank needs that needs most of it, and its part of the node's; 0:
  // not known.
  int64_t host_bytes = 0;
  int64_t host_available_bytes = 0;
  std::string rejected;  // why it is none of those that fit; empty: it is
};

// A rule that layouts break, and how many.
struct BrokenRule {
  std::string rule;  // as the first of them breaks it
  int64_t layouts = 0;
};

// What a search computed: it takes milliseconds for a walk of a deep pipeline, tens of microseconds
// for a memory table, and one for a bound.
struct SearchWork {
  int64_t bounds = 0;  // of the time of a step
  int64_t steps = 0;   // whose time was computed
  int64_t walks = 0;   // of pipelines, for these
  int64_t tables = 0;  // of memory
};

struct SearchResult {
  std::vector<RankedLayout> fitting;    // the fastest first
  std::vector<RankedLayout> too_large;  // faster than the last of those, the fastest first
  std::vector<BrokenRule> broken;       // most layouts first
  int64_t considered = 0;
  SearchWork work;
};

struct SearchOptions {
  size_t most_fitting = 20;
  size_t most_too_large = 10;
  // Layouts of the space that are considered; empty: all.
  std::function<bool(const v1::Layout&)> accepts = {};
};

// Memory of a rank: of its device, and its part of the host's.
struct RankMemory {
  int64_t device = 0;
  int64_t host = 0;  // where it says what is available, 0 is any number of bytes
};
// What ranks of each stage have for their plans; one value where nodes are alike.
std::vector<RankMemory> AvailableTo(const v1::JobSpec& job, const cost::ClusterModel& cluster,
                                    const v1::Layout& layout);

// The job's cost and memory in one layout, with groups of nodes in the order of the cluster.
// REQUIRES: CheckLayout accepts it; a job that has what the layout offloads (WithLayout).
RankedLayout Assess(const v1::JobSpec& job, const v1::Layout& layout,
                    const cost::ClusterModel& cluster, const cost::Recipe& recipe);

// The candidates: all of the cluster's devices; where the job names its layout, that one alone.
// From zero_stage 1 on the state is divided over all data ranks, and, where the job does not name
// `shard`, in groups of two more sizes: as many data ranks as a node has (at least two), and the
// middle one of the sizes that are a power of two times as many. Groups of nodes are in the order
// of the cluster.
std::vector<v1::Layout> SpaceOf(const v1::JobSpec& job, const cost::ClusterModel& cluster,
                                const cost::Recipe& recipe);

// REQUIRES: CheckCluster(cluster); a job whose vocabulary is known, for GPUs.
SearchResult SearchLayouts(const v1::JobSpec& job, const cost::ClusterModel& cluster,
                           const cost::Recipe& recipe, const SearchOptions& options = {});

// A job that asks for what the layout has: rules and memory are those of a job with its layout
// (v1::JobSpec.parallelism).
v1::JobSpec WithLayout(v1::JobSpec job, const v1::Layout& layout);

}  // namespace tercio::plan
