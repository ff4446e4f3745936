// Epochs of a job, as steps. Pure.
//
// The stream of samples runs across epochs: a step may hold the last samples of one and the first
// of the next. An epoch ends with the step in which its last sample falls.
#pragma once

#include <cstdint>

#include "proto/tercio/v1/job.pb.h"

namespace tercio::plan {

// The steps of a job of this many epochs: ceil(epochs * samples / global_batch). REQUIRES: all of
// them >= 1. At most the largest int64.
int64_t StepsOfEpochs(int64_t epochs, int64_t samples, int64_t global_batch);

// Whether the job's last step is known: a job of epochs learns it when its data is prepared.
bool KnowsSteps(const v1::TrainingSpec& training);

// Sets the steps of a job of epochs, where an epoch has `samples` samples, and the steps of its
// schedule where they are to be those of the job and are not set yet. Changes nothing for a job of
// steps. REQUIRES: samples >= 1.
void SetStepsOfEpochs(int64_t samples, v1::TrainingSpec* training);

// Epochs that have ended with step `step` (0: none), where an epoch has `samples` samples. Batches
// that a roll back skipped count as read. REQUIRES: samples >= 1.
int64_t EpochsEndedBy(const v1::TrainingSpec& training, int64_t samples, int64_t step);

// Whether validation data is evaluated after the step: by steps, by epochs, and after the last one.
// `samples` is the size of an epoch; 0: not known, and no epoch ends.
bool EvaluatesAfter(const v1::TrainingSpec& training, int64_t samples, int64_t step);

}  // namespace tercio::plan
