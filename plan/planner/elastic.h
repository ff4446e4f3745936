// The layout of a job that continues with fewer ranks than it asked for. Pure.
#pragma once

#include "absl/status/statusor.h"
#include "plan/planner/planner.h"
#include "proto/tercio/v1/job.pb.h"

namespace tercio::plan {

// The layout for as many ranks as possible, at least `least` and at most `most`, with the memory of
// the cluster's ranks (its number of ranks is ignored). Where tensor and pipeline degrees can stay
// they do, and with them the bits of every product: then only the data degree shrinks. What the job
// chooses beside the degrees stays (an interleaved schedule with its degrees only). The number of
// ranks is in *ranks. NOT_FOUND when no number of ranks in the range has a layout.
absl::StatusOr<v1::ParallelismSpec> SmallerLayout(const v1::JobSpec& job, int least, int most,
                                                  Cluster cluster, int* ranks);

}  // namespace tercio::plan
