// The errors of a launch that are errors of the program. Used by launch.cuh.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

namespace tercio::kernels::cuda {

// The most shared memory that a kernel declares itself, beside what its launch asks for. A block's
// limits are limits of both together.
inline constexpr size_t kDeclaredSharedBytes = 1 << 10;
// More must be asked for (cudaFuncAttributeMaxDynamicSharedMemorySize).
inline constexpr size_t kDefaultSharedBytes = (48 << 10) - kDeclaredSharedBytes;

struct LaunchShape {
  dim3 blocks;
  dim3 threads;
  size_t shared_bytes = 0;  // dynamic shared memory of a block
};

// Errors that only a wrong launch has: they end the program, with the kernel's name. Those of a
// device that has failed earlier are left for the next synchronization.
bool IsLaunchMistake(cudaError_t error);
[[noreturn]] void LaunchFailed(cudaError_t error, const char* kernel, const LaunchShape& shape);

}  // namespace tercio::kernels::cuda
