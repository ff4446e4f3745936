// Which parts of a job's state lie outside of the device's memory (the offload section), and where.
// Pure.
#pragma once

#include "plan/precision.h"
#include "proto/tercio/v1/job.pb.h"
#include "proto/tercio/v1/plan.pb.h"

namespace tercio::plan {

inline bool IsOffloaded(v1::OffloadTier tier) {
  return tier == v1::OFFLOAD_TIER_HOST || tier == v1::OFFLOAD_TIER_NVME;
}

// The memory of a CPU rank is the host's.
inline bool IsElsewhere(const v1::JobSpec& job, v1::OffloadTier tier) {
  return tier == v1::OFFLOAD_TIER_NVME || (tier == v1::OFFLOAD_TIER_HOST && OnGpu(job));
}

// Where the moments of a layout lie. A search for the layouts of a cluster may move moments that
// the job leaves in memory to the host: its layouts have an offload_share then
// (plan/planner/offload_choice.h).
inline v1::OffloadTier OptimizerTierOf(const v1::JobSpec& job, const v1::Layout& layout) {
  const v1::OffloadTier tier = job.offload().optimizer();
  return !IsOffloaded(tier) && layout.has_offload_share() ? v1::OFFLOAD_TIER_HOST : tier;
}

// Weights lie where the model cannot read them, or should not: it reads copies.
inline bool OffloadsParameters(const v1::JobSpec& job) {
  return IsElsewhere(job, job.offload().parameters());
}

// OffloadSpec.share and Layout.offload_share, which both stand for all where they are absent.
inline constexpr double kWholeShare = 1;
// OffloadSpec.share of a job that leaves it to the planner. In a layout: nothing lies elsewhere.
inline constexpr double kLeastShare = 0;

// Shares that the planner tries are multiples of an eighth.
inline constexpr int kOffloadParts = 8;

// Whether the planner chooses how much of the optimizer's state lies elsewhere.
inline bool ChoosesOffloadShare(const v1::JobSpec& job) {
  return IsElsewhere(job, job.offload().optimizer()) && job.offload().has_share() &&
         job.offload().share() == kLeastShare;
}

// The fraction of the optimizer's state that lies elsewhere (plan/state_shards.h, KeepNear).
inline double OffloadedShare(const v1::JobSpec& job, const v1::Layout& layout) {
  if (!IsElsewhere(job, job.offload().optimizer())) return kLeastShare;
  return layout.has_offload_share() ? layout.offload_share() : kWholeShare;
}

}  // namespace tercio::plan
