// Which parts of a job's state lie outside of the device's memory (the offload section), and where.
// Pure.
#pragma once

#include "plan/precision.h"
#include "proto/tercio/v1/job.pb.h"

namespace tercio::plan {

inline bool IsOffloaded(v1::OffloadTier tier) {
  return tier == v1::OFFLOAD_TIER_HOST || tier == v1::OFFLOAD_TIER_NVME;
}

// The memory of a CPU rank is the host's.
inline bool IsElsewhere(const v1::JobSpec& job, v1::OffloadTier tier) {
  return tier == v1::OFFLOAD_TIER_NVME || (tier == v1::OFFLOAD_TIER_HOST && OnGpu(job));
}

// Weights lie where the model cannot read them, or should not: it reads copies.
inline bool OffloadsParameters(const v1::JobSpec& job) {
  return IsElsewhere(job, job.offload().parameters());
}

}  // namespace tercio::plan
