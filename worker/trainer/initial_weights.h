// The weights of a job's first step, where it does not begin with random ones.
#pragma once

#include "absl/status/status.h"
#include "proto/tercio/v1/job.pb.h"
#include "worker/engine/training_engine.h"

namespace tercio {

// Reads this rank's slices of the weights in model.from; moments stay zero. Each rank reads only
// what it needs, whatever its layout. Errors name the directory.
absl::Status LoadInitialWeights(const v1::ModelSpec& model, TrainingEngine& engine);

}  // namespace tercio
