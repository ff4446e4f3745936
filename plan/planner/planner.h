// Which layout a job gets, and why: enumerates the legal layouts, predicts memory (from the
// trainer's own table) and time (plan/planner/cost/step_cost.h), and chooses. Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "plan/plan_builder.h"
#include "plan/planner/cluster.h"
#include "proto/tercio/v1/job.pb.h"
#include "proto/tercio/v1/plan.pb.h"

namespace tercio::plan {

// The size assumed for a vocabulary that is not known.
inline constexpr int kUnknownVocabulary = 256;
// Every factorisation of the ranks into degrees, with what else the job asks for.
std::vector<v1::Layout> LayoutsOfDegrees(const v1::JobSpec& job, int ranks);

// For every factorisation of the cluster's ranks into degrees the best layout
// (plan/planner/candidates.h), rejected ones with the reason; `chosen` is the fastest that fits
// beside the communicators of NCCL that it needs (plan/gpu_reserve.h). Where the job names its
// layout that is the only candidate. vocab_size 0 counts as kUnknownVocabulary.
v1::PlanReport PlanLayouts(const v1::JobSpec& job, const Cluster& cluster);

// Adds to a report of PlanLayouts what the state of the chosen layout, or of the only one, takes
// with each zero_stage, and what its ranks send.
void AddDivisions(const v1::JobSpec& job, const Cluster& cluster, v1::PlanReport* report);

// The layout that the job gets. INVALID_ARGUMENT: impossible; RESOURCE_EXHAUSTED: fits in no layout
// (the message holds settings that would fit, and the memory table).
absl::StatusOr<v1::Layout> ChooseLayout(const v1::JobSpec& job, const Cluster& cluster);

// For the coordinator: the plan of the chosen layout on these slots, which say how many ranks there
// are and how many of them are on a node: those of `cluster` are ignored.
absl::StatusOr<v1::Plan> MakePlan(const v1::JobSpec& job,
                                  const std::vector<plan::DeviceSlot>& slots, Cluster cluster);

// Whether the job can ever run with this much memory for each rank: values that this version
// supports, a possible layout. INVALID_ARGUMENT (where it does not fit, with its memory table).
absl::Status AdmitJob(const v1::JobSpec& job, int64_t memory_bytes, bool shares_gpus = false);

// Bytes of the tensors in one checkpoint: weights and two moments, fp32.
int64_t CheckpointBytes(const v1::JobSpec& job);

}  // namespace tercio::plan
