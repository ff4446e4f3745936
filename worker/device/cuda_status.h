// CUDA's error codes as absl::Status.
#pragma once

#include <cuda_runtime.h>

#include <string_view>

#include "absl/status/status.h"

namespace tercio {

// OK for cudaSuccess. Out of memory is RESOURCE_EXHAUSTED; no usable device or driver
// FAILED_PRECONDITION, with what to look at; anything else INTERNAL: the device, or a kernel, has
// failed and this process can use it no more.
absl::Status CudaStatus(cudaError_t error, std::string_view what);

}  // namespace tercio
