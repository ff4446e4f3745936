// Elements of buffers as fp32, and 16-byte accesses to them. T is float, __nv_bfloat16 or __half.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/primitives/split.h"

namespace tercio::kernels::cuda {

__device__ __forceinline__ float ToFloat(float x) { return x; }
__device__ __forceinline__ float ToFloat(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float ToFloat(__half x) { return __half2float(x); }

template <typename T>
__device__ __forceinline__ T FromFloat(float x);
template <>
__device__ __forceinline__ float FromFloat<float>(float x) {
  return x;
}
template <>
__device__ __forceinline__ __nv_bfloat16 FromFloat<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__device__ __forceinline__ __half FromFloat<__half>(float x) {
  return __float2half_rn(x);
}

__device__ __forceinline__ uint32_t BitsOf(float x) { return __float_as_uint(x); }
__device__ __forceinline__ uint32_t BitsOf(__nv_bfloat16 x) { return __bfloat16_as_ushort(x); }
__device__ __forceinline__ uint32_t BitsOf(__half x) { return __half_as_ushort(x); }

// kCount elements in registers, moved 16 bytes at a time where kCount * sizeof(T) is a multiple of
// 16 (then the address must be one, too), else one by one.
template <typename T, int kCount>
struct Elements {
  static constexpr bool kWide = kCount * sizeof(T) % sizeof(uint4) == 0;
  static constexpr int kParts = kWide ? static_cast<int>(kCount * sizeof(T) / sizeof(uint4)) : 1;

  union {
    T values[kCount];
    uint4 parts[kParts];
  };

  __device__ __forceinline__ void Load(const T* from) {
    if constexpr (kWide) {
#pragma unroll
      for (int i = 0; i < kParts; ++i) parts[i] = reinterpret_cast<const uint4*>(from)[i];
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i) values[i] = from[i];
    }
  }

  __device__ __forceinline__ void Store(T* to) const {
    if constexpr (kWide) {
#pragma unroll
      for (int i = 0; i < kParts; ++i) reinterpret_cast<uint4*>(to)[i] = parts[i];
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i) to[i] = values[i];
    }
  }
};

}  // namespace tercio::kernels::cuda
