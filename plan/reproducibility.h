// Which runs of a job have equal bits (docs/numerics.md). Pure.
#pragma once

#include <algorithm>
#include <cstdint>

#include "plan/lanes.h"
#include "plan/precision.h"
#include "plan/preference.h"
#include "proto/tercio/v1/job.pb.h"
#include "proto/tercio/v1/plan.pb.h"

namespace tercio::plan {

// Sums over sequences have one order, whatever the layout: always so on CPUs, on GPUs where the job
// asks for it, since it costs smaller products and more memory.
inline bool OrderIsFixed(const v1::JobSpec& job) {
  return !OnGpu(job) || job.training().reproducibility() == v1::REPRODUCIBILITY_EXACT;
}

// The lanes of a job that does not choose them: whole pairs of sequences, where these stay
// together.
inline int UsualLanes(const v1::TrainingSpec& training) {
  return LaneCount(std::max<int64_t>(1, training.global_batch() / SequencesTogether(training)));
}

// Lanes of the gradient sum where its order is fixed. Job files name them or get the default when
// they are read; a job from elsewhere may leave them open.
inline int LanesOfJob(const v1::TrainingSpec& training) {
  return training.lanes() > 0 ? training.lanes() : UsualLanes(training);
}

// Whether the job names other lanes than it would get.
inline bool ChoosesLanes(const v1::TrainingSpec& training) {
  return training.lanes() > 0 && training.lanes() != UsualLanes(training);
}

// Lanes of the gradient sum in a layout: the job's, or one for each data rank, or, where these keep
// sums of their shards only, for each of their micro-batches.
inline int LanesOf(const v1::JobSpec& job, const v1::Layout& layout) {
  if (OrderIsFixed(job)) return LanesOfJob(job.training());
  return layout.zero_stage() >= 2 ? layout.data() * layout.micro_batches() : layout.data();
}

}  // namespace tercio::plan
