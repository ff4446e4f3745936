// GELU in both forms and the sigmoid, for kernels: a value's share, which it is multiplied with,
// and the slope.
#pragma once

#include <cuda_runtime.h>

namespace tercio::kernels::cuda {

// gelu(x) = x * s with s = 1 / (1 + exp(-2u)), u = sqrt(2/pi) (x + 0.044715 x^3).
struct TanhGelu {
  static __device__ __forceinline__ float Share(float x) {
    const float u = x * -1.5957691216057308f * fmaf(x * x, 0.044715f, 1.0f);
    return 1.0f / (1.0f + expf(u));
  }
  // d gelu / dx = s + x s (1 - s) 2 u',  2 u' = 2 sqrt(2/pi) (1 + 3 * 0.044715 x^2)
  static __device__ __forceinline__ float Slope(float x) {
    const float s = Share(x);
    return s + x * s * ((1.0f - s) * fmaf(x * x, 0.2140644488f, 1.5957691216f));
  }
};

// gelu(x) = x Phi(x)
struct ExactGelu {
  static __device__ __forceinline__ float Share(float x) {
    return 0.5f * erfcf(x * -0.70710678118654752f);
  }
  static __device__ __forceinline__ float Slope(float x) {
    return fmaf(x * 0.3989422804f, expf(x * x * -0.5f), Share(x));
  }
};

__device__ __forceinline__ float Sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

}  // namespace tercio::kernels::cuda
