// The one way to launch a kernel, and to dynamic shared memory, alike with nvcc and under the
// emulation. For .cu files.
//
// Errors: an impossible launch ends the program; that of a device that has failed is kept
// (launch.h).
#pragma once

#include <cuda_runtime.h>

#include <utility>

#include "kernels/cuda/primitives/launch.h"

namespace tercio::kernels::cuda {

template <typename... Parameters, typename... Arguments>
void Launch(void (*kernel)(Parameters...), const LaunchShape& shape, cudaStream_t stream,
            Arguments&&... arguments) {
  cudaLaunchConfig_t config = {};
  config.gridDim = shape.blocks;
  config.blockDim = shape.threads;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream;
  cudaError_t error = cudaSuccess;
  if (shape.shared_bytes > kDefaultSharedBytes) {
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(shape.shared_bytes));
  }
  if (error == cudaSuccess) {
    error = cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...);
  }
  if (error == cudaSuccess) return;
  const char* name = "";
  static_cast<void>(cudaFuncGetName(&name, kernel));
  CheckLaunch(error, name, shape);
}

#ifdef TERCIO_CUDA_EMULATED
template <typename T>
T* DynamicShared() {
  return static_cast<T*>(tercio::emulation::DynamicSharedMemory());
}
#else
// LaunchShape::shared_bytes bytes, aligned to 16. Undefined before it is written.
template <typename T>
__device__ __forceinline__ T* DynamicShared() {
  extern __shared__ __align__(16) unsigned char dynamic_shared_memory[];
  return reinterpret_cast<T*>(dynamic_shared_memory);
}
#endif

}  // namespace tercio::kernels::cuda
