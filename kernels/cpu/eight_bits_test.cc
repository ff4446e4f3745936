// Numbers of 8 bits by the tables of Micikevicius et al. 2022, and scaled products against double
// sums.
#include "kernels/cpu/eight_bits.h"

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/cpu_ops.h"

namespace tercio::kernels {
namespace {

constexpr uint64_t kSeed = 20261123;
constexpr Format kFormats[] = {Format::kE4m3, Format::kE5m2};
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Table 1 of the paper.
TEST(EightBits, TheFormatsEnds) {
  EXPECT_EQ(FromEightBits(Format::kE4m3, 0x7e), 448.0f);
  EXPECT_EQ(FromEightBits(Format::kE4m3, 0x08), 0x1p-6f);
  EXPECT_EQ(FromEightBits(Format::kE4m3, 0x07), 0.875f * 0x1p-6f);
  EXPECT_EQ(FromEightBits(Format::kE4m3, 0x01), 0x1p-9f);
  EXPECT_TRUE(std::isnan(FromEightBits(Format::kE4m3, 0x7f)));
  EXPECT_EQ(FromEightBits(Format::kE5m2, 0x7b), 57344.0f);
  EXPECT_EQ(FromEightBits(Format::kE5m2, 0x04), 0x1p-14f);
  EXPECT_EQ(FromEightBits(Format::kE5m2, 0x03), 0.75f * 0x1p-14f);
  EXPECT_EQ(FromEightBits(Format::kE5m2, 0x01), 0x1p-16f);
  EXPECT_EQ(FromEightBits(Format::kE5m2, 0x7c), kInfinity);
  EXPECT_TRUE(std::isnan(FromEightBits(Format::kE5m2, 0x7d)));
  EXPECT_EQ(FromEightBits(Format::kE5m2, 0xc0), -2.0f);
}

// Between neighbours, at both sides of their middle and in it, and beyond the end.
TEST(EightBits, RoundToTheNearestAndTiesToEven) {
  for (const Format format : kFormats) {
    const int last = format == Format::kE4m3 ? 0x7e : 0x7b;
    for (int bits = 0; bits <= last; ++bits) {
      const float low = FromEightBits(format, static_cast<uint8_t>(bits));
      ASSERT_EQ(RoundToEightBits(format, low), low);
      ASSERT_EQ(RoundToEightBits(format, -low), -low);
      ASSERT_EQ(ToEightBits(format, low), bits);
      ASSERT_EQ(ToEightBits(format, -low), bits | 0x80);
      if (bits == last) continue;
      const float high = FromEightBits(format, static_cast<uint8_t>(bits + 1));
      const float middle = (low + high) / 2;
      ASSERT_EQ(RoundToEightBits(format, middle), bits % 2 == 0 ? low : high);
      ASSERT_EQ(RoundToEightBits(format, std::nextafter(middle, 0.0f)), low);
      ASSERT_EQ(RoundToEightBits(format, -std::nextafter(middle, kInfinity)), -high);
    }
    const float largest = FromEightBits(format, static_cast<uint8_t>(last));
    for (const float x : {largest * 1.01f, largest * 2, std::numeric_limits<float>::max()}) {
      EXPECT_EQ(RoundToEightBits(format, x), largest);
      EXPECT_EQ(RoundToEightBits(format, -x), -largest);
    }
    EXPECT_EQ(RoundToEightBits(format, std::numeric_limits<float>::denorm_min()), 0);
    for (const float x : {kInfinity, -kInfinity, std::nanf("")}) {
      EXPECT_TRUE(std::isnan(RoundToEightBits(format, x)));
      EXPECT_EQ(ToEightBits(format, RoundToEightBits(format, x)), 0x7f);
    }
  }
}

TEST(EightBits, TheLargestScaleThatFits) {
  std::mt19937_64 random(kSeed);
  for (const Format format : kFormats) {
    const float end = format == Format::kE4m3 ? 448.0f : 57344.0f;
    std::vector<float> values = {1.0f,   1.75f,    std::nextafter(1.75f, 2.0f),      448.0f,
                                 449.0f, 0x1p-80f, std::numeric_limits<float>::max()};
    for (int i = 0; i < 1000; ++i) {
      values.push_back(std::ldexp(1.0f + static_cast<float>(random() % 4096) / 4096,
                                  static_cast<int>(random() % 200) - 80));
    }
    for (const float x : values) {
      const Scale scale = ScaleFor(format, x);
      ASSERT_EQ(scale.multiplier * scale.inverse, 1.0f) << x;
      ASSERT_LE(x * scale.multiplier, end) << x;
      ASSERT_GT(static_cast<double>(x) * scale.multiplier * 2, end) << x;
      int exponent = 0;
      ASSERT_EQ(std::frexp(scale.multiplier, &exponent), 0.5f) << x;
    }
    EXPECT_EQ(ScaleFor(format, 0x1p-120f).multiplier, 0x1p100f);
    EXPECT_EQ(ScaleFor(format, std::numeric_limits<float>::denorm_min()).multiplier, 0x1p100f);
    for (const float x : {0.0f, kInfinity, std::nanf("")}) {
      EXPECT_EQ(ScaleFor(format, x).multiplier, 1.0f);
    }
  }
}

TEST(EightBits, QuantizesAndFindsTheLargest) {
  constexpr int64_t kRows = 3;
  constexpr int64_t kColumns = 5;
  const std::vector<float> x = {1, -2, 3, 0.1f, 0,  5,     -600, std::nanf(""),
                                7, 8,  9, 10,   11, 0.01f, 13};
  const auto ops = CreateCpuOps(1);
  Scale scale;
  ops->ChooseScale(
      {.x = x.data(), .count = kRows * kColumns, .format = Format::kE4m3, .scale = &scale});
  EXPECT_EQ(scale.multiplier, 0.5f);
  std::vector<float> plain(x.size());
  std::vector<float> transposed(x.size());
  float largest = 700;
  const Scale one;
  ops->Quantize({.x = x.data(),
                 .plain = Values(plain.data(), Format::kE4m3),
                 .transposed = Values(transposed.data(), Format::kE4m3),
                 .scale = &one,
                 .largest = &largest,
                 .rows = kRows,
                 .columns = kColumns});
  EXPECT_EQ(largest, 700);
  largest = 20;
  ops->Quantize({.x = x.data(),
                 .plain = Values(plain.data(), Format::kE4m3),
                 .transposed = nullptr,
                 .scale = &scale,
                 .largest = &largest,
                 .rows = kRows,
                 .columns = kColumns});
  EXPECT_EQ(largest, 600);
  for (size_t i = 0; i < x.size(); ++i) {
    const float expected = RoundToEightBits(Format::kE4m3, x[i] * scale.multiplier);
    const float turned = RoundToEightBits(Format::kE4m3, x[i]);
    const float turned_seen = transposed[i % kColumns * kRows + i / kColumns];
    if (std::isnan(x[i])) {
      EXPECT_TRUE(std::isnan(plain[i]) && std::isnan(turned_seen));
    } else {
      EXPECT_EQ(plain[i], expected) << i;
      EXPECT_EQ(turned_seen, turned) << i;
    }
  }
  EXPECT_EQ(plain[6], -300.0f + 12);  // 288: the distance of numbers is 32 there
}

TEST(EightBits, MultipliesAndScalesBack) {
  constexpr int64_t kM = 16, kN = 32, kK = 48;
  std::mt19937_64 random(kSeed);
  std::normal_distribution<float> normal;
  const auto draw = [&](Format format, int64_t count) {
    std::vector<float> values;
    for (int64_t i = 0; i < count; ++i) values.push_back(RoundToEightBits(format, normal(random)));
    return values;
  };
  auto a = draw(Format::kE5m2, kM * kK);
  auto b = draw(Format::kE4m3, kN * kK);
  const Scale a_scale = {4, 0.25f};
  const Scale b_scale = {0.5f, 2};
  std::vector<float> bias(kN, 3.0f);
  std::vector<float> c(kM * kN, 7.0f);
  const auto ops = CreateCpuOps(1);
  for (const bool accumulate : {false, true}) {
    const std::vector<float> before = c;
    ops->ScaledMatmul({.a = Values(a.data(), Format::kE5m2),
                       .b = Values(b.data(), Format::kE4m3),
                       .a_scale = &a_scale,
                       .b_scale = &b_scale,
                       .bias = Values(bias.data(), Format::kBfloat16),
                       .c = Values(c.data(), Format::kBfloat16),
                       .m = kM,
                       .n = kN,
                       .k = kK,
                       .accumulate = accumulate});
    for (int64_t i = 0; i < kM * kN; ++i) {
      double sum = 3 + (accumulate ? before[static_cast<size_t>(i)] : 0);
      for (int64_t k = 0; k < kK; ++k) {
        sum +=
            0.5 * a[static_cast<size_t>(i / kN * kK + k)] * b[static_cast<size_t>(i % kN * kK + k)];
      }
      ASSERT_NEAR(c[static_cast<size_t>(i)], sum, std::abs(sum) / 256 + 1e-6) << i;
    }
  }
}

}  // namespace
}  // namespace tercio::kernels
