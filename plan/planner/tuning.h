// Which layouts `tercio tune` tries, and which it takes: predictions that are corrected by what the
// layouts before have taken on the real devices. Pure.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "plan/planner/cluster.h"
#include "proto/tercio/v1/job.pb.h"
#include "proto/tercio/v1/plan.pb.h"

namespace tercio::plan {

// Seconds of a step, as a run has measured them. Parts that are not known are 0, as on GPUs.
struct MeasuredStep {
  double seconds = 0;  // median
  double compute = 0;  // the means of the rank that computes longest
  double wait = 0;
  double optimizer = 0;
};

struct Trial {
  v1::Layout layout;
  v1::StepParts predicted;
  std::optional<MeasuredStep> measured;
  bool failed = false;  // it ended otherwise, and is not tried again
};

// By what predictions are multiplied, part by part: the medians of measured over predicted.
struct Correction {
  double compute = 1;
  double wait = 1;  // tensor communication, bubble, transfers, exposed exchange of data ranks
  double optimizer = 1;
};
Correction CorrectionOf(absl::Span<const Trial> trials);
double CorrectedSeconds(const v1::StepParts& parts, const Correction& correction);

// What fits, for a job that leaves its layout to the planner: of every factorisation of the ranks
// all micro-batches, chunks and sequence parallelism, or, where none of them fits, the best one;
// the fastest first.
std::vector<Trial> TrialsOf(const v1::JobSpec& job, const Cluster& cluster);

// The trial that is predicted to be the fastest of those that have not run; nullopt: none is left,
// or, once three have run, none that could be faster than the best of them even if it gains as much
// over its prediction as any trial did (at least a tenth).
std::optional<size_t> NextTrial(absl::Span<const Trial> trials);

// The fastest of those that have run; nullopt: none has.
std::optional<size_t> BestTrial(absl::Span<const Trial> trials);

}  // namespace tercio::plan
