// Reads the weights of a rank that holds whole tensors.
#pragma once

#include "absl/status/status.h"
#include "checkpoint/weight_source.h"
#include "plan/model_tensors.h"

namespace tercio::inference {

// Into `parameters`, where the table says. The error of the first part of a tensor that cannot be
// read, on any number of threads.
absl::Status LoadWeights(const checkpoint::WeightSource& source, const plan::StageTensors& tensors,
                         int threads, float* parameters);

}  // namespace tercio::inference
