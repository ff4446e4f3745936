// The emulated 16-bit and 8-bit types against the CPU's rounding, whose own test holds the
// definition.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/eight_bits.h"

namespace tercio::emulation {
namespace {

using kernels::Format;

constexpr uint64_t kSeed = 20261123;

float Narrowed(float x, Format format) {
  return format == Format::kBfloat16 ? __bfloat162float(__float2bfloat16_rn(x))
                                     : __half2float(__float2half_rn(x));
}

TEST(HalfTypes, EveryPatternSurvives) {
  for (uint32_t pattern = 0; pattern < 65536; ++pattern) {
    const auto bits = static_cast<unsigned short>(pattern);
    const float wide = __bfloat162float(__ushort_as_bfloat16(bits));
    ASSERT_EQ(std::bit_cast<uint32_t>(wide), pattern << 16);
    const unsigned short back = __bfloat16_as_ushort(__float2bfloat16_rn(wide));
    ASSERT_EQ(back, std::isnan(wide) ? 0x7fff : pattern);
    const float half = __half2float(__ushort_as_half(bits));
    const unsigned short half_back = __half_as_ushort(__float2half_rn(half));
    ASSERT_EQ(half_back, std::isnan(half) ? 0x7fff : pattern);
    // By the definition of the format.
    const int exponent = static_cast<int>(pattern >> 10 & 0x1f);
    const auto fraction = static_cast<double>(pattern & 0x3ff);
    if (exponent == 0x1f) {
      ASSERT_TRUE(fraction == 0 ? std::isinf(half) : std::isnan(half));
    } else {
      const double magnitude =
          exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
      ASSERT_EQ(half, pattern >> 15 != 0 ? -magnitude : magnitude);
    }
  }
}

TEST(HalfTypes, RoundLikeTheCpu) {
  std::mt19937_64 random(kSeed);
  std::vector<float> values;
  for (int i = 0; i < 200000; ++i) {
    values.push_back(std::bit_cast<float>(static_cast<uint32_t>(random())));
    // Where fp16 has its subnormal numbers, its end, and ties.
    values.push_back(std::ldexp(1.0f + static_cast<float>(random() % 4096) / 4096,
                                static_cast<int>(random() % 46) - 28));
  }
  for (const Format format : {Format::kBfloat16, Format::kFloat16}) {
    std::vector<float> rounded(values.size());
    kernels::CreateCpuOps(1)->Copy({rounded.data(), format}, values.data(),
                                   static_cast<int64_t>(values.size()));
    for (size_t i = 0; i < values.size(); ++i) {
      const float narrowed = Narrowed(values[i], format);
      if (std::isnan(values[i])) {
        ASSERT_TRUE(std::isnan(narrowed));
        continue;
      }
      ASSERT_EQ(std::bit_cast<uint32_t>(narrowed), std::bit_cast<uint32_t>(rounded[i]))
          << values[i];
    }
  }
}

TEST(HalfTypes, PairsAreTwo) {
  const float2 bf16 = __bfloat1622float2(__floats2bfloat162_rn(1.5f, -3.0f));
  EXPECT_TRUE(bf16.x == 1.5f && bf16.y == -3.0f);
  const float2 fp16 = __half22float2(__floats2half2_rn(1.5f, -3.0f));
  EXPECT_TRUE(fp16.x == 1.5f && fp16.y == -3.0f);
  static_assert(sizeof(__half2) == 4 && sizeof(__nv_bfloat162) == 4);
}

TEST(EightBitTypes, AreTheCpus) {
  std::mt19937_64 random(kSeed);
  for (const Format format : {Format::kE4m3, Format::kE5m2}) {
    const auto type = format == Format::kE4m3 ? __NV_E4M3 : __NV_E5M2;
    for (int i = 0; i < 256; ++i) {
      const auto bits = static_cast<uint8_t>(i);
      const float here = FloatOf(bits, type);
      const float there = kernels::FromEightBits(format, bits);
      ASSERT_TRUE(here == there || (std::isnan(here) && std::isnan(there))) << i;
    }
    for (int i = 0; i < 200000; ++i) {
      const float x = i % 2 == 0 ? std::bit_cast<float>(static_cast<uint32_t>(random()))
                                 : std::ldexp(static_cast<float>(random() % 65) / 32,
                                              static_cast<int>(random() % 36) - 18);
      if (std::isinf(x)) continue;
      ASSERT_EQ(__nv_cvt_float_to_fp8(x, __NV_SATFINITE, type),
                kernels::ToEightBits(format, kernels::RoundToEightBits(format, x)))
          << x;
    }
  }
}

}  // namespace
}  // namespace tercio::emulation
