// The log-probabilities of answers by the model as a job begins with it, where preferences are
// compared with a reference (plan/preference.h).
//
// Threads: that of the engine.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "data/sample_source.h"
#include "proto/tercio/v1/job.pb.h"
#include "worker/engine/held_out_evaluation.h"
#include "worker/engine/rank_batch.h"

namespace tercio::engine {

// The numbers of the samples (data/sample_source.h) that steps after `after_step` and evaluations
// read, ascending, with those of kto's divergence. The same on every rank.
std::vector<int64_t> NumbersToScore(const v1::JobSpec& spec, data::SampleSource& source,
                                    int64_t after_step);

// By the number of a sample; those that are not read are 0. Scores global batches of samples with
// the model's weights: a sample's number depends neither on the layout nor on those beside it.
// Collective. REQUIRES: the weights are there.
absl::StatusOr<std::vector<double>> ReferencesOf(const v1::JobSpec& spec,
                                                 data::SampleSource& source, int64_t after_step,
                                                 RankBatch& batch, HeldOutEvaluation& evaluation);

}  // namespace tercio::engine
