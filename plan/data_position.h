// Which part of the data a step is trained on. Pure, and the only place that knows.
//
// Step k reads global batch k of the data's endless stream, or, after roll backs, one further on:
// TrainingSpec.data_skips lists after which step how many batches are skipped. The list is part
// of the specification, so every rank and every later attempt reads the same.
#pragma once

#include <cstdint>

#include "proto/tercio/v1/job.pb.h"

namespace tercio::plan {

// The global batch (1-based) that step `step` (1-based) reads. Ascends with the step.
int64_t BatchOfStep(const v1::TrainingSpec& training, int64_t step);

// Place in the run (0-based) of the first sequence of the step's batch.
int64_t FirstSampleOfStep(const v1::TrainingSpec& training, int64_t step);

// The run goes back from `bad_step` to the checkpoint of `resume_step`, and continues with the
// batch that the step after `bad_step` would have read: batches in between are not read again, nor
// are those skipped before. REQUIRES: 0 <= resume_step < bad_step.
void SkipSpike(int64_t resume_step, int64_t bad_step, v1::TrainingSpec* training);

// Tokens of a sequence that the model works on: those of a decoder, too.
inline int64_t TokensOfSequence(const v1::ModelSpec& model) {
  return int64_t{model.context()} + model.decoder_context();
}

}  // namespace tercio::plan
