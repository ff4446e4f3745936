// CUDA's 16-bit numbers, bf16 and fp16, as bits, and their conversions: to nearest, of two equally
// near ones the even one; values that are too large become infinity, subnormal numbers are kept,
// every NaN becomes 0x7fff, as on a GPU. Arithmetic is done in fp32 by the kernels; there are no
// operators.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "emulation/vector_types.h"

struct __nv_bfloat16 {
  uint16_t bits;
};
struct __half {
  uint16_t bits;
};
struct alignas(4) __nv_bfloat162 {
  __nv_bfloat16 x, y;
};
struct alignas(4) __half2 {
  __half x, y;
};

inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits) { return {bits}; }
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 x) { return x.bits; }
inline __half __ushort_as_half(unsigned short bits) { return {bits}; }
inline unsigned short __half_as_ushort(__half x) { return x.bits; }

inline float __bfloat162float(__nv_bfloat16 x) {
  return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16);
}

inline __nv_bfloat16 __float2bfloat16_rn(float x) {
  if (std::isnan(x)) return {0x7fff};
  const auto bits = std::bit_cast<uint32_t>(x);
  return {static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1)) >> 16)};
}
inline __nv_bfloat16 __float2bfloat16(float x) { return __float2bfloat16_rn(x); }

inline float __half2float(__half x) {
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000) << 16;
  const int exponent = x.bits >> 10 & 0x1f;
  const uint32_t fraction = x.bits & 0x3ff;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | fraction << 13);
  if (exponent != 0) {
    return std::bit_cast<float>(sign | static_cast<uint32_t>(exponent + 112) << 23 |
                                fraction << 13);
  }
  return std::copysign(static_cast<float>(fraction) * 0x1p-24f, std::bit_cast<float>(sign));
}

inline __half __float2half_rn(float x) {
  if (std::isnan(x)) return {0x7fff};
  const auto bits = std::bit_cast<uint32_t>(x);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const float magnitude = std::fabs(x);
  if (magnitude >= 65520.0f) return {static_cast<uint16_t>(sign | 0x7c00)};
  if (magnitude < 0x1p-14f) {
    // Multiples of 2^-24, which is the distance of floats from 0.5 to 1: the sum rounds.
    const auto sum = std::bit_cast<uint32_t>(magnitude + 0.5f);
    return {static_cast<uint16_t>(sign | (sum - std::bit_cast<uint32_t>(0.5f)))};
  }
  const uint32_t positive = bits & 0x7fffffffu;
  const uint32_t rounded = (positive + 0xfffu + (positive >> 13 & 1)) >> 13;
  return {static_cast<uint16_t>(sign | (rounded - (112u << 10)))};
}
inline __half __float2half(float x) { return __float2half_rn(x); }

inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
  return {__float2bfloat16_rn(x), __float2bfloat16_rn(y)};
}
inline float2 __bfloat1622float2(__nv_bfloat162 x) {
  return {__bfloat162float(x.x), __bfloat162float(x.y)};
}
inline __half2 __floats2half2_rn(float x, float y) {
  return {__float2half_rn(x), __float2half_rn(y)};
}
inline float2 __half22float2(__half2 x) { return {__half2float(x.x), __half2float(x.y)}; }
