// CUDA's error codes as absl::Status.
#pragma once

#include <cuda_runtime.h>

#include <string_view>

#include "absl/status/status.h"

namespace tercio::device {

// OK for cudaSuccess. Out of memory is RESOURCE_EXHAUSTED; no usable device or driver
// FAILED_PRECONDITION, with what to look at; anything else INTERNAL: the device, or a kernel, has
// failed and this process can no longer use it. Messages name the error in parentheses, by which
// the agent tells a fault of the device from one of the program (common/gpus/gpu_faults.h).
absl::Status CudaStatus(cudaError_t error, std::string_view what);

// Whether a query reports work in progress. Does not leave that as the thread's last error, which
// the next launch would be blamed for.
bool IsUnderWay(cudaError_t query);

}  // namespace tercio::device
