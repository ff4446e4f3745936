// Which answers to a launch are errors of the program. Used by launch.cuh.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

namespace tercio::kernels::cuda {

struct LaunchShape {
  dim3 blocks;
  dim3 threads;
  size_t shared_bytes = 0;  // dynamic shared memory of a block
};

// Errors that only a wrong launch has: they end the program, with the kernel's name. Those of a
// device that has failed earlier are left alone: whoever synchronizes next gets them.
bool IsLaunchMistake(cudaError_t error);
[[noreturn]] void LaunchFailed(cudaError_t error, const char* kernel, const LaunchShape& shape);

}  // namespace tercio::kernels::cuda
