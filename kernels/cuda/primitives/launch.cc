#include "kernels/cuda/primitives/launch.h"

#include <cstdio>
#include <cstdlib>
#include <utility>

namespace tercio::kernels::cuda {
namespace {

// Kernels are launched in functions that return nothing, many levels below the code that reports
// errors.
thread_local cudaError_t kept = cudaSuccess;

[[noreturn]] void LaunchFailed(cudaError_t error, const char* what, const LaunchShape& shape) {
  // The message has to come before the end, as nothing else knows the kernel's name.
  std::fprintf(
      stderr,
      "launch of %s with grid (%u, %u, %u), block (%u, %u, %u), %zu bytes of shared memory: "
      "%s: %s\n",
      what, shape.blocks.x, shape.blocks.y, shape.blocks.z, shape.threads.x, shape.threads.y,
      shape.threads.z, shape.shared_bytes, cudaGetErrorName(error), cudaGetErrorString(error));
  std::abort();
}

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

}  // namespace

void CheckLaunch(cudaError_t error, const char* what, const LaunchShape& shape) {
  if (error == cudaSuccess) return;
  if (IsLaunchMistake(error)) LaunchFailed(error, what, shape);
  // Nobody else is to find an error that is dealt with here.
  static_cast<void>(cudaGetLastError());
  // Later errors are consequences of the first.
  if (kept == cudaSuccess) kept = error;
}

cudaError_t TakeLaunchError() { return std::exchange(kept, cudaSuccess); }

}  // namespace tercio::kernels::cuda
