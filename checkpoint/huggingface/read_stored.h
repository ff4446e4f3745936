// Reads slices of tensors where they are in mapped files. Pure but for the memory that it reads.
//
// Threads: any.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "checkpoint/huggingface/stored_place.h"
#include "proto/tercio/v1/checkpoint_service.pb.h"

namespace tercio::checkpoint {

// Writes the slice's values row-major, as fp32. INVALID_ARGUMENT for another shape, or a slice
// outside of the tensor; `directory` is named then.
absl::Status ReadStored(const StoredPlace& place, const v1::TensorSlice& slice,
                        const std::string& directory, float* out);

}  // namespace tercio::checkpoint
