// The functions of feed-forward layers and their slopes, for kernels. NaN stays NaN.
#pragma once

#include <cuda_runtime.h>

#include "kernels/ops.h"

namespace tercio::kernels::cuda {

// gelu(x) = x * s with s = 1 / (1 + exp(-2u)), u = sqrt(2/pi) (x + 0.044715 x^3).
struct TanhGelu {
  static __device__ __forceinline__ float Share(float x) {
    const float u = x * -1.5957691216057308f * fmaf(x * x, 0.044715f, 1.0f);
    return 1.0f / (1.0f + expf(u));
  }
  static __device__ __forceinline__ float Value(float x) { return x * Share(x); }
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
  static __device__ __forceinline__ float Value(float x) { return x * Share(x); }
  static __device__ __forceinline__ float Slope(float x) {
    return fmaf(x * 0.3989422804f, expf(x * x * -0.5f), Share(x));
  }
};

struct Relu {
  static __device__ __forceinline__ float Value(float x) { return x < 0.0f ? 0.0f : x; }
  static __device__ __forceinline__ float Slope(float x) { return x <= 0.0f ? 0.0f : 1.0f; }
};

struct Silu {
  static __device__ __forceinline__ float Share(float x) { return 1.0f / (1.0f + expf(-x)); }
  static __device__ __forceinline__ float Value(float x) { return x * Share(x); }
  // d silu / dx = s + x s (1 - s)
  static __device__ __forceinline__ float Slope(float x) {
    const float s = Share(x);
    return fmaf(x * s, 1.0f - s, s);
  }
};

// Calls body.operator()<Function>() with one of the above.
template <typename Body>
void ByFunction(Activation function, const Body& body) {
  switch (function) {
    case Activation::kGeluTanh:
      return body.template operator()<TanhGelu>();
    case Activation::kGelu:
      return body.template operator()<ExactGelu>();
    case Activation::kRelu:
      return body.template operator()<Relu>();
    case Activation::kSilu:
      return body.template operator()<Silu>();
  }
}

}  // namespace tercio::kernels::cuda
