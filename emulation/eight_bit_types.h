// The part of CUDA's <cuda_fp8.h> that Tercio uses: numbers of 8 bits, as bits, E4M3 and E5M2
// (Micikevicius et al. 2022). Rounding is to nearest, of two equally near ones to the even one;
// subnormal numbers are kept, every NaN becomes 0x7f, as on a GPU.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "emulation/half_types.h"

using __nv_fp8_storage_t = unsigned char;
enum __nv_fp8_interpretation_t { __NV_E4M3, __NV_E5M2 };
enum __nv_saturation_t { __NV_SATFINITE };  // values that are too large become the largest number

inline __nv_fp8_storage_t __nv_cvt_float_to_fp8(float x, __nv_saturation_t,
                                                __nv_fp8_interpretation_t format) {
  if (std::isnan(x)) return 0x7f;
  const int fraction_bits = format == __NV_E4M3 ? 3 : 2;
  const int bias = format == __NV_E4M3 ? 7 : 15;
  const float largest = format == __NV_E4M3 ? 448.0f : 57344.0f;
  const float least_normal = format == __NV_E4M3 ? 0x1p-6f : 0x1p-14f;
  const auto sign = static_cast<uint32_t>(std::signbit(x) ? 0x80 : 0);
  const float magnitude = std::fabs(x) < largest ? std::fabs(x) : largest;
  uint32_t bits = 0;
  if (magnitude < least_normal) {
    // Subnormal: a multiple of the smallest number. The sum rounds, as with fp16.
    const float ruler = format == __NV_E4M3 ? 0x1p14f : 0x1p7f;
    bits = std::bit_cast<uint32_t>(magnitude + ruler) - std::bit_cast<uint32_t>(ruler);
  } else {
    const int dropped = 23 - fraction_bits;
    const uint32_t wide = std::bit_cast<uint32_t>(magnitude);
    const uint32_t odd = wide >> dropped & 1;
    bits = ((wide + (1u << (dropped - 1)) - 1 + odd) >> dropped) -
           (static_cast<uint32_t>(127 - bias) << fraction_bits);
  }
  return static_cast<__nv_fp8_storage_t>(sign | bits);
}

namespace tercio::emulation {

inline float FloatOf(__nv_fp8_storage_t x, __nv_fp8_interpretation_t format) {
  // E5M2 is the upper half of fp16.
  if (format == __NV_E5M2) return __half2float({static_cast<uint16_t>(x << 8)});
  const int exponent = x >> 3 & 0xf;
  const int fraction = x & 7;
  const float sign = (x & 0x80) != 0 ? -1.0f : 1.0f;
  if ((x & 0x7f) == 0x7f) return std::nanf("");
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(fraction), -9);
  return sign * std::ldexp(static_cast<float>(8 + fraction), exponent - 10);
}

}  // namespace tercio::emulation
