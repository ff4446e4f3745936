// Rounding to bf16 and fp16 against the definition of the formats, and that no operation hides a
// value that is not a number.
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "hwy/aligned_allocator.h"
#include "hwy/highway.h"
#include "kernels/cpu/attention_scratch.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/reference/reference_ops.h"

namespace tercio::kernels {
namespace {

constexpr uint64_t kSeed = 20261121;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Case {
  Format format;
  int stored_bits;  // of the significand
  reference::FloatFormat definition;
};
const Case kCases[] = {
    {Format::kBfloat16, 7, {8, -126, 0x1.fep127}},
    {Format::kFloat16, 10, {11, -14, 65504}},
};

uint32_t BitsOf(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}
float FromBits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// What a 16-bit pattern means.
float Decode(uint16_t pattern, const Case& c) {
  const int stored = c.stored_bits;
  const int exponent_bits = 15 - stored;
  const int exponent = pattern >> stored & ((1 << exponent_bits) - 1);
  const int fraction = pattern & ((1 << stored) - 1);
  const int least = c.definition.least_exponent;
  double value;
  if (exponent == (1 << exponent_bits) - 1) {
    value = fraction == 0 ? kInfinity : kNan;
  } else if (exponent == 0) {
    value = std::ldexp(fraction, least - stored);
  } else {
    value = std::ldexp((1 << stored) + fraction, exponent - 1 + least - stored);
  }
  return static_cast<float>((pattern & 0x8000) != 0 ? -value : value);
}

void ExpectRounded(const std::vector<float>& values, const Case& c) {
  std::vector<float> rounded = values;
  CreateCpuOps(2)->Round(rounded.data(), static_cast<int64_t>(rounded.size()), c.format);
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::isnan(values[i])) {
      ASSERT_TRUE(std::isnan(rounded[i])) << std::hex << BitsOf(values[i]);
      continue;
    }
    const auto expected = static_cast<float>(reference::RoundTo(values[i], c.definition));
    ASSERT_EQ(BitsOf(rounded[i]), BitsOf(expected))
        << values[i] << " became " << rounded[i] << " instead of " << expected;
  }
}

TEST(Rounding, EveryPatternStaysWhatItIs) {
  for (const Case& c : kCases) {
    std::vector<float> values;
    for (int pattern = 0; pattern < 65536; ++pattern) {
      values.push_back(Decode(static_cast<uint16_t>(pattern), c));
    }
    std::vector<float> rounded = values;
    CreateCpuOps(2)->Round(rounded.data(), 65536, c.format);
    for (size_t i = 0; i < values.size(); ++i) {
      if (std::isnan(values[i])) {
        ASSERT_TRUE(std::isnan(rounded[i])) << i;
      } else {
        ASSERT_EQ(BitsOf(rounded[i]), BitsOf(values[i])) << i;
      }
    }
  }
}

// Between all neighbours: the middle, and the floats next to it on both sides.
TEST(Rounding, HalvesGoToTheEvenNeighbour) {
  for (const Case& c : kCases) {
    std::vector<float> values;
    for (int pattern = 0; pattern < 0x8000; ++pattern) {
      const float low = Decode(static_cast<uint16_t>(pattern), c);
      const float high = Decode(static_cast<uint16_t>(pattern + 1), c);
      if (!std::isfinite(low) || !std::isfinite(high)) continue;
      const auto middle = static_cast<float>((static_cast<double>(low) + high) / 2);
      for (const float value :
           {middle, std::nextafter(middle, low), std::nextafter(middle, high)}) {
        values.push_back(value);
        values.push_back(-value);
      }
    }
    ExpectRounded(values, c);
  }
}

TEST(Rounding, EndsOfTheRange) {
  for (const Case& c : kCases) {
    ExpectRounded({0.0f,
                   -0.0f,
                   kInfinity,
                   -kInfinity,
                   kNan,
                   -kNan,
                   FromBits(0x7f800001u),
                   FromBits(0xff800001u),
                   FromBits(1),
                   FromBits(0x80000001u),
                   65503.0f,
                   65504.0f,
                   65519.99f,
                   65520.0f,
                   -65520.0f,
                   65536.0f,
                   1e30f,
                   0x1.fep127f,
                   0x1.fefffep127f,
                   0x1.ffp127f,
                   0x1.fffffep127f,
                   0x1p-24f,
                   0x1p-25f,
                   0x1.000002p-25f,
                   0x1p-26f,
                   0x1.8p-24f,
                   0x1p-14f,
                   0x1.fffffep-15f},
                  c);
  }
}

TEST(Rounding, RandomPatternsInEveryTargetAndAnyLength) {
  RecordProperty("seed", std::to_string(kSeed));
  std::mt19937_64 random(kSeed);
  for (const Case& c : kCases) {
    std::vector<float> values;
    for (int i = 0; i < 200'003; ++i) values.push_back(FromBits(static_cast<uint32_t>(random())));
    for (int i = 0; i < 100'000; ++i) {  // near the values that models hold
      values.push_back(std::ldexp(static_cast<float>(random() % 16777216) / 16777216.0f,
                                  static_cast<int>(random() % 44) - 28));
    }
    for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
      if (target > HWY_AVX2) continue;  // older ones: Tercio needs AVX2
      hwy::SetSupportedTargetsForTest(target);
      ExpectRounded(values, c);
    }
    hwy::SetSupportedTargetsForTest(0);
    for (int count = 0; count < 40; ++count) {
      std::vector<float> part(values.begin(), values.begin() + count + 1);
      CreateCpuOps(1)->Round(part.data(), count, c.format);
      EXPECT_EQ(BitsOf(part.back()), BitsOf(values[static_cast<size_t>(count)])) << count;
    }
  }
}

// What operations round themselves has the bits of Round after them; products: bf16_products_test.
TEST(Rounding, ResultsOfOperations) {
  RecordProperty("seed", std::to_string(kSeed));
  std::mt19937_64 random(kSeed);
  std::normal_distribution<float> normal;
  constexpr int64_t kRows = 5;
  constexpr int64_t kColumns = 37;
  constexpr int64_t kCount = kRows * kColumns;
  const auto values = [&](int64_t count) {
    std::vector<float> made(static_cast<size_t>(count));
    for (float& value : made) value = normal(random);
    return made;
  };
  const std::vector<float> x = values(2 * kCount);
  const std::vector<float> weight = values(kColumns);
  const std::vector<float> bias = values(kColumns);
  const auto ops = CreateCpuOps(2);
  for (const Case& c : kCases) {
    // run(format, out) writes kCount values.
    const auto expect = [&](const char* what, const auto& run) {
      std::vector<float> expected(kCount);
      run(Format::kFloat32, expected.data());
      std::vector<float> actual(kCount);
      run(c.format, actual.data());
      EXPECT_NE(std::memcmp(expected.data(), actual.data(), kCount * sizeof(float)), 0) << what;
      ops->Round(expected.data(), kCount, c.format);
      EXPECT_EQ(std::memcmp(expected.data(), actual.data(), kCount * sizeof(float)), 0) << what;
    };
    float mean[kRows];
    float rstd[kRows];
    expect("norm", [&](Format format, float* out) {
      ops->LayerNorm({x.data(), weight.data(), bias.data(), out, mean, rstd, kRows, kColumns, 1e-5f,
                      false, format});
    });
    expect("residual", [&](Format format, float* out) {
      ops->Residual(
          {x.data(), x.data() + kCount, bias.data(), out, kRows, kColumns, Dropout(), format});
    });
    expect("gelu", [&](Format format, float* out) {
      std::vector<float> h = x;
      ops->BiasGelu({h.data(), bias.data(), out, kRows, kColumns, false, format});
    });
    expect("swiglu", [&](Format format, float* out) {
      ops->Swiglu({x.data(), out, kRows, kColumns, format});
    });
    // The norm is that of the rounded sum.
    std::vector<float> sum(kCount);
    std::vector<float> expected(kCount);
    const ResidualArgs add{x.data(), x.data() + kCount, nullptr,   sum.data(),
                           kRows,    kColumns,          Dropout(), c.format};
    ops->Residual(add);
    ops->LayerNorm({sum.data(), weight.data(), bias.data(), expected.data(), mean, rstd, kRows,
                    kColumns, 1e-5f, false, c.format});
    std::vector<float> actual(kCount);
    ops->ResidualLayerNorm(add, {nullptr, weight.data(), bias.data(), actual.data(), mean, rstd,
                                 kRows, kColumns, 1e-5f, false, c.format});
    EXPECT_EQ(std::memcmp(expected.data(), actual.data(), kCount * sizeof(float)), 0);
  }
}

// A step whose numbers have gone bad is noticed by its loss or gradients: so no operation may make
// a number of what is none.
TEST(NotANumber, RunsThroughAttentionAndLoss) {
  constexpr int64_t kTokens = 5;
  constexpr int64_t kWidth = 4;
  const auto ops = CreateCpuOps(1);
  for (const float bad : {kNan, kInfinity}) {
    std::vector<float> qkv(kTokens * 3 * kWidth, 0.25f);
    qkv[2 * 3 * kWidth] = bad;  // of the query of token 2
    std::vector<float> out(kTokens * kWidth);
    std::vector<float> lse(kTokens);
    const auto scratch =
        hwy::AllocateAligned<float>(static_cast<size_t>(AttentionScratch(kTokens, kWidth, 1)));
    AttentionArgs args{};
    args.q = qkv.data();
    args.k = args.q + kWidth;
    args.v = args.k + kWidth;
    args.stride = 3 * kWidth;
    args.out = out.data();
    args.lse = lse.data();
    args.sequences = 1;
    args.tokens = kTokens;
    args.heads = 1;
    args.head_dim = kWidth;
    args.scratch = scratch.get();
    ops->Attention(args);
    for (int64_t i = 0; i < kTokens; ++i) {
      EXPECT_EQ(std::isnan(out[static_cast<size_t>(i * kWidth)]), i == 2) << bad << " " << i;
    }
    for (const int bad_column : {0, 3, 17}) {
      std::vector<float> logits(20, 0.5f);
      logits[static_cast<size_t>(bad_column)] = bad;
      const int32_t target = 3;
      float stats[kCrossEntropyStats];
      float row_lse = 0;
      float loss = 0;
      ops->CrossEntropyLocal({logits.data(), &target, stats, 1, 20, 20, 0, false});
      ops->CrossEntropyCombine({stats, &row_lse, &loss, 1, 1, {}});
      EXPECT_FALSE(std::isfinite(loss)) << bad << " in column " << bad_column;
    }
  }
}

}  // namespace
}  // namespace tercio::kernels
