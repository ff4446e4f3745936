// Sums and maxima over a warp or a block, in a fixed order. Every thread gets the result. Blocks
// have whole warps; all threads of the warp or block take part.
#pragma once

#include <cuda_runtime.h>

namespace tercio::kernels::cuda {

inline constexpr int kWarpThreads = 32;
inline constexpr unsigned kAllLanes = 0xffffffffu;

__device__ __forceinline__ float WarpSumByShuffles(float value) {
#pragma unroll
  for (int distance = kWarpThreads / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, distance);
  }
  return value;
}

// NaN loses against any number.
__device__ __forceinline__ float WarpMaxByShuffles(float value) {
#pragma unroll
  for (int distance = kWarpThreads / 2; distance > 0; distance /= 2) {
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, distance));
  }
  return value;
}

#ifdef TERCIO_CUDA_EMULATED
// The same bits (emulation/kernel_test.cu), for a fifth of the switches between threads: these sums
// are most of what the emulation's threads wait for.
inline float WarpSum(float value) {
  return tercio::emulation::WarpReduce(tercio::emulation::WarpOperation::kSum, value);
}
inline float WarpMax(float value) {
  return tercio::emulation::WarpReduce(tercio::emulation::WarpOperation::kLargest, value);
}
#else
__device__ __forceinline__ float WarpSum(float value) { return WarpSumByShuffles(value); }
__device__ __forceinline__ float WarpMax(float value) { return WarpMaxByShuffles(value); }
#endif

// All sums at once, in place, each in the order that it would have alone.
template <int kCount>
__device__ __forceinline__ void BlockSums(float (&sums)[kCount]) {
  __shared__ __align__(16) float parts[kWarpThreads][kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) sums[i] = WarpSum(sums[i]);
  const int thread = static_cast<int>(threadIdx.x);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (thread % kWarpThreads == 0) parts[thread / kWarpThreads][i] = sums[i];
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kCount; ++i) sums[i] = 0;
  const int warps = static_cast<int>(blockDim.x) / kWarpThreads;
  for (int warp = 0; warp < warps; ++warp) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) sums[i] += parts[warp][i];
  }
  __syncthreads();
}

__device__ __forceinline__ void BlockSums(float& a, float& b) {
  float sums[2] = {a, b};
  BlockSums(sums);
  a = sums[0];
  b = sums[1];
}

__device__ __forceinline__ float BlockSum(float value) {
  float sums[1] = {value};
  BlockSums(sums);
  return sums[0];
}

__device__ __forceinline__ float BlockMax(float value) {
  __shared__ float parts[kWarpThreads];
  value = WarpMax(value);
  const int thread = static_cast<int>(threadIdx.x);
  if (thread % kWarpThreads == 0) parts[thread / kWarpThreads] = value;
  __syncthreads();
  const int warps = static_cast<int>(blockDim.x) / kWarpThreads;
  for (int warp = 0; warp < warps; ++warp) value = fmaxf(value, parts[warp]);
  __syncthreads();
  return value;
}

}  // namespace tercio::kernels::cuda
