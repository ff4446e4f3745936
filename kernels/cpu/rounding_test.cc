// Rounding to bf16 and fp16 against the definition of the formats, and that no operation hides a
// value that is not a number.
#include <cmath>
#include <cstring>
#include <functional>
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
  int stored_bits;  // bits of the significand
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

// In place, by Ops::Copy.
void Round(Ops& ops, float* x, int64_t count, Format format) { ops.Copy({x, format}, x, count); }

void ExpectRounded(const std::vector<float>& values, const Case& c) {
  std::vector<float> rounded = values;
  Round(*CreateCpuOps(2), rounded.data(), static_cast<int64_t>(rounded.size()), c.format);
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
    Round(*CreateCpuOps(2), rounded.data(), 65536, c.format);
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
      Round(*CreateCpuOps(1), part.data(), count, c.format);
      EXPECT_EQ(BitsOf(part.back()), BitsOf(values[static_cast<size_t>(count)])) << count;
    }
  }
}

// Whatever an operation writes as values has the bits of Copy after it; products:
// bf16_products_test.
class RoundedResults : public ::testing::Test {
 protected:
  static constexpr int64_t kRows = 5;
  static constexpr int64_t kColumns = 37;
  static constexpr int64_t kCount = kRows * kColumns;

  void SetUp() override { RecordProperty("seed", std::to_string(kSeed)); }

  std::vector<float> Random(int64_t count) {
    std::normal_distribution<float> normal;
    std::vector<float> made(static_cast<size_t>(count));
    for (float& value : made) value = normal(random_);
    return made;
  }

  // run(out) writes kCount values.
  void Expect(const char* what, const std::function<void(Values)>& run) {
    for (const Case& c : kCases) {
      std::vector<float> expected(kCount);
      run(Values(expected.data()));
      std::vector<float> actual(kCount);
      run(Values(actual.data(), c.format));
      EXPECT_NE(std::memcmp(expected.data(), actual.data(), kCount * sizeof(float)), 0) << what;
      Round(*ops_, expected.data(), kCount, c.format);
      EXPECT_EQ(std::memcmp(expected.data(), actual.data(), kCount * sizeof(float)), 0) << what;
    }
  }

  std::mt19937_64 random_{kSeed};
  const std::unique_ptr<Ops> ops_ = CreateCpuOps(2);
  const std::vector<float> x_ = Random(2 * kCount);
  const float* const other_ = x_.data() + kCount;
  const std::vector<float> weight_ = Random(kColumns);
  const std::vector<float> bias_ = Random(kColumns);
  const std::vector<int32_t> order_ = {3, 0, 4, 1, 2};
  float mean_[kRows];
  float rstd_[kRows];
};

TEST_F(RoundedResults, OfNormsAndResiduals) {
  const auto norm = [&](Values out) {
    ops_->LayerNorm({.x = x_.data(),
                     .weight = weight_.data(),
                     .bias = bias_.data(),
                     .y = out,
                     .mean = mean_,
                     .rstd = rstd_,
                     .rows = kRows,
                     .columns = kColumns});
  };
  Expect("norm", norm);
  Expect("norm backward", [&](Values out) {
    norm(out);
    std::vector<float> gradients(2 * kColumns);
    ops_->LayerNormBackward({.dy = other_,
                             .x = x_.data(),
                             .weight = weight_.data(),
                             .mean = mean_,
                             .rstd = rstd_,
                             .dx = out,
                             .dweight = gradients.data(),
                             .dbias = gradients.data() + kColumns,
                             .rows = kRows,
                             .columns = kColumns,
                             .rows_per_leaf = kRows});
  });
  Expect("residual", [&](Values out) {
    ops_->Residual({.residual = x_.data(),
                    .branch = other_,
                    .bias = bias_.data(),
                    .out = out,
                    .rows = kRows,
                    .columns = kColumns,
                    .dropout = Dropout()});
  });
  Dropout dropout;
  dropout.probability = 0.25f;
  dropout.tokens = kRows;
  Expect("residual backward", [&](Values out) {
    ops_->ResidualBackward({.dout = x_.data(),
                            .dbranch = out,
                            .dbias = nullptr,
                            .rows = kRows,
                            .columns = kColumns,
                            .rows_per_leaf = kRows,
                            .dropout = dropout});
  });
}

TEST_F(RoundedResults, OfNormsOfHeads) {
  Expect("norm of heads", [&](Values out) {
    ops_->HeadNorm({.x = x_.data(),
                    .weight = weight_.data(),
                    .y = out,
                    .rstd = rstd_,
                    .rows = kRows,
                    .heads = 1,
                    .head_dim = kColumns,
                    .stride = kColumns});
  });
  std::fill_n(rstd_, kRows, 1.5f);
  Expect("its gradient", [&](Values out) {
    std::vector<float> gradient(kColumns);
    ops_->HeadNormBackward({.dy = other_,
                            .x = x_.data(),
                            .weight = weight_.data(),
                            .rstd = rstd_,
                            .dx = out,
                            .dweight = gradient.data(),
                            .rows = kRows,
                            .heads = 1,
                            .head_dim = kColumns,
                            .stride = kColumns,
                            .rows_per_leaf = kRows});
  });
}

TEST_F(RoundedResults, OfActivations) {
  Expect("gelu", [&](Values out) {
    ops_->Activate({.h = x_.data(), .g = out, .rows = kRows, .columns = kColumns});
  });
  Expect("gelu backward", [&](Values out) {
    ops_->ActivateBackward(
        {.dg = x_.data(), .h = other_, .dh = out, .rows = kRows, .columns = kColumns});
  });
  Expect("swiglu", [&](Values out) {
    ops_->Gated({.h = x_.data(), .g = out, .rows = kRows, .columns = kColumns});
  });
  Expect("tanh", [&](Values out) {
    ops_->Zero(out, kCount);
    ops_->BiasTanh({.y = out, .bias = bias_.data(), .rows = kRows, .columns = kColumns});
  });
  Expect("tanh backward", [&](Values out) {
    ops_->TanhBackward({.dy = x_.data(), .y = other_, .dx = out, .count = kCount});
  });
}

TEST_F(RoundedResults, OfLookupsAndSums) {
  Expect("add", [&](Values out) {
    ops_->Zero(out, kCount);
    ops_->Add(out, x_.data(), kCount);
  });
  Expect("scale", [&](Values out) {
    std::copy_n(x_.begin(), kCount, out.floats());
    ops_->Scale(out, 1.0f / 3, kCount);
  });
  Expect("copy", [&](Values out) { ops_->Copy(out, x_.data(), kCount); });
  Expect("gather", [&](Values out) {
    ops_->Gather(
        {.x = x_.data(), .index = order_.data(), .out = out, .count = kRows, .columns = kColumns});
  });
  Expect("scatter", [&](Values out) {
    ops_->Zero(out, kCount);
    ops_->ScatterAdd({.from = x_.data(),
                      .index = order_.data(),
                      .to = out,
                      .count = kRows,
                      .columns = kColumns});
  });
  Expect("embedding", [&](Values out) {
    ops_->Embedding({.tokens = order_.data(),
                     .weight = x_.data(),
                     .out = out,
                     .count = kRows,
                     .columns = kColumns,
                     .vocabulary_begin = 0,
                     .vocabulary_rows = kRows});
  });
  // Numbers of all formats, whose products with a third are of none: rows in the result's own
  // format are rounded, too.
  std::vector<float> weight(kCount);
  for (size_t i = 0; i < weight.size(); ++i) weight[i] = static_cast<float>(i % 50) / 16;
  Expect("scaled embedding", [&](Values out) {
    ops_->Embedding({.tokens = order_.data(),
                     .weight = Values(weight.data(), out.format()),
                     .out = out,
                     .count = kRows,
                     .columns = kColumns,
                     .vocabulary_begin = 0,
                     .vocabulary_rows = kRows,
                     .scale = 1.0f / 3});
  });
  Expect("positions", [&](Values out) {
    ops_->Zero(out, kCount);
    ops_->PositionEmbedding(
        {.x = out, .weight = x_.data(), .rows = kRows, .columns = kColumns, .tokens = kRows});
  });
}

TEST_F(RoundedResults, ANormIsThatOfTheRoundedSum) {
  for (const Case& c : kCases) {
    std::vector<float> sum(kCount);
    std::vector<float> expected(kCount);
    const ResidualArgs add{.residual = x_.data(),
                           .branch = other_,
                           .bias = nullptr,
                           .out = {sum.data(), c.format},
                           .rows = kRows,
                           .columns = kColumns,
                           .dropout = Dropout()};
    ops_->Residual(add);
    ops_->LayerNorm({.x = sum.data(),
                     .weight = weight_.data(),
                     .bias = bias_.data(),
                     .y = {expected.data(), c.format},
                     .mean = mean_,
                     .rstd = rstd_,
                     .rows = kRows,
                     .columns = kColumns});
    std::vector<float> actual(kCount);
    ops_->RunChain({.residual = add,
                    .norm = LayerNormArgs{.x = nullptr,
                                          .weight = weight_.data(),
                                          .bias = bias_.data(),
                                          .y = {actual.data(), c.format},
                                          .mean = mean_,
                                          .rstd = rstd_,
                                          .rows = kRows,
                                          .columns = kColumns}});
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
    qkv[2 * 3 * kWidth] = bad;  // in the query of token 2
    std::vector<float> out(kTokens * kWidth);
    std::vector<float> lse(kTokens);
    const auto scratch = hwy::AllocateAligned<float>(
        static_cast<size_t>(AttentionScratch({.tokens = kTokens, .head_dim = kWidth}, 1)));
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
      ops->CrossEntropyLocal({.logits = logits.data(),
                              .targets = &target,
                              .stats = stats,
                              .rows = 1,
                              .valid = 20,
                              .stride = 20,
                              .vocabulary_begin = 0,
                              .sums = false});
      ops->CrossEntropyCombine(
          {.stats = stats, .lse = &row_lse, .loss = &loss, .rows = 1, .ranks = 1, .smoothing = {}});
      EXPECT_FALSE(std::isfinite(loss)) << bad << " in column " << bad_column;
    }
  }
}

}  // namespace
}  // namespace tercio::kernels
