// Matrices that a checkpoint has as codes of few bits (plan/model_tensors.h, kBasePrefix), read as
// the values that these stand for: a checkpoint of such a job is a model as any other.
//
// Threads: any. Errors: those of the source; DATA_LOSS when codes, scales and groups do not belong
// to one matrix.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "checkpoint/weight_source.h"
#include "proto/tercio/v1/checkpoint_service.pb.h"

namespace tercio::checkpoint {

// Whether the source has codes in the place of the tensor's values.
bool HasCodes(const WeightSource& source, const std::string& tensor);

// As WeightSource::ReadSlice of the tensor. `stored_columns`: floats in a row of its codes.
// REQUIRES: HasCodes.
absl::Status ReadDequantized(const WeightSource& source, const v1::TensorSlice& slice,
                             int64_t stored_columns, float* out);

}  // namespace tercio::checkpoint
