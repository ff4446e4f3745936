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

// Lanes of the gradient sum where its order is fixed. Job files name them or get the default when
// they are read; a job from elsewhere may leave them open.
inline int LanesOfJob(const v1::TrainingSpec& training) {
  return training.lanes() > 0 ? training.lanes() : LaneCount(training.global_batch());
}

// Whether the job names other lanes than it would get.
inline bool ChoosesLanes(const v1::TrainingSpec& training) {
  return training.lanes() > 0 && training.lanes() != LaneCount(training.global_batch());
}

// Lanes of the gradient sum in a layout: the job's, or one for each data rank, or, where these keep
// sums of their shards only, for each of their micro-batches.
inline int LanesOf(const v1::JobSpec& job, const v1::Layout& layout) {
  if (OrderIsFixed(job)) return LanesOfJob(job.training());
  return layout.zero_stage() >= 2 ? layout.data() * layout.micro_batches() : layout.data();
}

}  // namespace tercio::plan
