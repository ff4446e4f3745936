// What becomes of the error that a launch returns. Used by launch.cuh.
//
// Threads: any; what is kept belongs to the thread that launched.
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

// Takes what the launch of `what`, or another call that enqueues, has returned. A wrong launch ends
// the program, with the name. Errors of a device that has failed earlier are kept for
// TakeLaunchError.
void CheckLaunch(cudaError_t error, const char* what, const LaunchShape& shape);
// The first error that was kept since the last call. Unlike the runtime's last error, it is of
// launches alone: what other calls of the thread have left behind is not among it.
cudaError_t TakeLaunchError();

}  // namespace tercio::kernels::cuda
