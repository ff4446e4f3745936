#include "kernels/cuda/primitives/launch.h"

#include <cstdio>
#include <cstdlib>

namespace tercio::kernels::cuda {

bool IsLaunchMistake(cudaError_t error) {
  switch (error) {
    case cudaErrorInvalidValue:
    case cudaErrorInvalidConfiguration:
    case cudaErrorInvalidDeviceFunction:
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorInvalidResourceHandle:
    case cudaErrorLaunchOutOfResources:
      return true;
    default:
      return false;
  }
}

void LaunchFailed(cudaError_t error, const char* kernel, const LaunchShape& shape) {
  std::fprintf(
      stderr,
      "launch of %s with grid (%u, %u, %u), block (%u, %u, %u), %zu bytes of shared memory: "
      "%s: %s\n",
      kernel, shape.blocks.x, shape.blocks.y, shape.blocks.z, shape.threads.x, shape.threads.y,
      shape.threads.z, shape.shared_bytes, cudaGetErrorName(error), cudaGetErrorString(error));
  std::abort();
}

}  // namespace tercio::kernels::cuda
