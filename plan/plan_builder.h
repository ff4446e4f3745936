// Puts a plan together: layout, ranks, groups, per-stage actions, buckets and memory. Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/tercio/v1/job.pb.h"
#include "proto/tercio/v1/plan.pb.h"

namespace tercio::plan {

// A device of a node that a rank may be put on.
struct DeviceSlot {
  std::string node;
  int device = 0;
  int gpu = -1;  // GPU of the node that the slot stands for; -1: none
};

// REQUIRES: job.model.vocab_size > 0 and slots.size() == world size (rank r goes to slots[r];
// callers order slots so that tensor groups share a node). INVALID_ARGUMENT when the layout is
// impossible, or collectives of NCCL are asked for and two ranks share a GPU.
absl::StatusOr<v1::Plan> BuildPlan(const v1::JobSpec& job, const v1::Layout& layout,
                                   const std::vector<DeviceSlot>& slots, int threads_per_rank);

// The message for one rank: its own part, of a size that does not grow with the number of ranks.
v1::RankPlan SliceForRank(const v1::Plan& plan, int rank);
// The same without what the ranks of its stage share.
v1::RankPlan SliceWithoutStage(const v1::Plan& plan, int rank);

// The micro-batch for `auto`: the largest divisor of a rank's share of the global batch that has at
// most 2,048 tokens, on a GPU 65,536, and, with a pipeline, leaves at least two micro-batches per
// stage. At least 1. Below `less_than`, if that is not 0: for one that does not fit in memory.
int64_t ChooseMicroBatch(const v1::JobSpec& job, int pipeline, int data, int64_t less_than = 0);

// Ranks that a job needs; kMostRanks (plan/limits.h) + 1 or more where its degrees give more than
// that.
int RanksOfJob(const v1::JobSpec& job);

// The layout that the job file names, when it names one (parallelism not automatic): data degree
// filled in, micro-batch chosen when automatic. INVALID_ARGUMENT with the rule, the numbers and the
// nearest layouts that work. REQUIRES: CheckSizes(job) (plan/limits.h).
absl::StatusOr<v1::Layout> LayoutOfJob(const v1::JobSpec& job);

}  // namespace tercio::plan
