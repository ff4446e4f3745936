#include "kernels/cuda/primitives/launch.h"

#include <cstdio>
#include <cstdlib>

namespace tercio::kernels::cuda {

bool IsLaunchMistake(cudaError_t error) {
  // Only a wrong launch has these errors; all others may come from earlier work of the device.
  switch (error) {
    case cudaErrorInvalidValue:
    case cudaErrorInvalidConfiguration:
    case cudaErrorInvalidDeviceFunction:
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorInvalidResourceHandle:
    case cudaErrorLaunchOutOfResources:
      return true;
    // A device that has failed earlier is not the fault of this launch.
    default:
      return false;
  }
}

void LaunchFailed(cudaError_t error, const char* kernel, const LaunchShape& shape) {
  // The message has to come before the end, as nothing else knows the kernel's name.
  std::fprintf(
      stderr,
      "launch of %s with grid (%u, %u, %u), block (%u, %u, %u), %zu bytes of shared memory: "
      "%s: %s\n",
      kernel, shape.blocks.x, shape.blocks.y, shape.blocks.z, shape.threads.x, shape.threads.y,
      shape.threads.z, shape.shared_bytes, cudaGetErrorName(error), cudaGetErrorString(error));
  std::abort();
}

}  // namespace tercio::kernels::cuda
