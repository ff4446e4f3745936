// Which runs of a job have equal bits (docs/numerics.md). Pure.
#pragma once

#include "plan/lanes.h"
#include "plan/precision.h"
#include "proto/tercio/v1/job.pb.h"
#include "proto/tercio/v1/plan.pb.h"

namespace tercio::plan {

// Sums over sequences have one order, whatever the layout: always so on CPUs, on GPUs where the job
// asks for it, since it costs smaller products and more memory.
inline bool OrderIsFixed(const v1::JobSpec& job) {
  return !OnGpu(job) || job.training().reproducibility() == v1::REPRODUCIBILITY_EXACT;
}

// Lanes of the gradient sum: those of the global batch, or one for each data rank.
inline int LanesOf(const v1::JobSpec& job, const v1::Layout& layout) {
  return OrderIsFixed(job) ? LaneCount(job.training().global_batch()) : layout.data();
}

}  // namespace tercio::plan
