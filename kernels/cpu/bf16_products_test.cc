// Products of bf16 values: every way to compute them has the bits of one definition, in every
// vector target; what a process chooses, and that wrong instructions would be noticed.
#include "kernels/cpu/bf16_products.h"

#include <immintrin.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hwy/highway.h"
#include "kernels/cpu/cpu_ops.h"

namespace tercio::kernels {
namespace {

using Floats = std::vector<float>;

constexpr uint64_t kSeed = 20261122;

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

// Denormals as zero, without the processor's mode.
float Flush(float x) { return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x; }

// What rounds up to the least normal number is not denormal: small sums are rounded as if exponents
// had no end.
float FlushedFma(float a, float b, float c) {
  a = Flush(a);
  b = Flush(b);
  c = Flush(c);
  const float sum = std::fmaf(a, b, c);
  if (std::abs(sum) > 0x1p-126f || !std::isfinite(sum)) return sum;
  if (a == 0 || b == 0 || (sum == 0 && c != 0)) return sum;  // exact
  const float scaled = std::fmaf(std::ldexp(a, 60), std::ldexp(b, 60), std::ldexp(c, 120));
  return std::abs(scaled) < 0x1p-6f ? std::copysign(0.0f, scaled) : std::ldexp(scaled, -120);
}
float FlushedAdd(float a, float b) { return Flush(Flush(a) + Flush(b)); }

std::vector<Bf16Method> MethodsHere() {
  std::vector<Bf16Method> methods = {Bf16Method::kFloat, Bf16Method::kPairs};
  if (HasBf16Instruction()) methods.push_back(Bf16Method::kInstruction);
  return methods;
}

// body() in every vector target that Tercio may run with.
template <typename Body>
void InEveryTarget(const Body& body) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    if (target > HWY_AVX2) continue;  // older ones: Tercio needs AVX2
    hwy::SetSupportedTargetsForTest(target);
    body(hwy::TargetName(target));
  }
  hwy::SetSupportedTargetsForTest(0);
}

class Bf16ProductsTest : public ::testing::Test {
 protected:
  void SetUp() override { RecordProperty("seed", std::to_string(kSeed)); }
  void TearDown() override { ResetBf16MethodForTest(); }

  // bf16 values about 1; every eighth is so small that products with it are denormal.
  Floats Random(int64_t count) {
    Floats values(static_cast<size_t>(count));
    for (float& value : values) {
      const auto word = static_cast<uint32_t>(random_());
      const uint32_t exponent = word % 8 == 0 ? 56 + word / 8 % 12 : 125 + word / 8 % 4;
      value = FromBits((word & 0x807f0000u) | exponent << 23);
    }
    return values;
  }

  std::mt19937_64 random_{kSeed};
};

// What numerics.md defines: element (i, j) of a product over k.
float Element(const Floats& a, const Floats& b, int64_t i, int64_t j, int64_t k, int64_t leaf,
              const float* old) {
  float c = old == nullptr ? 0 : *old;
  bool assign = old == nullptr;
  for (int64_t at = 0; at < k;) {
    const int64_t leaf_end = std::min(k, (at / leaf + 1) * leaf);
    const int64_t end = std::min(at + kPieceRows, leaf_end);
    float acc = 0;
    for (; at < end; ++at) {
      acc = FlushedFma(a[static_cast<size_t>(i * k + at)], b[static_cast<size_t>(j * k + at)], acc);
    }
    c = assign ? acc : FlushedAdd(c, acc);
    assign = false;
  }
  return c;
}

Floats Transposed(const Floats& x, int64_t rows, int64_t columns) {
  Floats out(x.size());
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      out[static_cast<size_t>(c * rows + r)] = x[static_cast<size_t>(r * columns + c)];
    }
  }
  return out;
}

void ExpectSameBits(const Floats& expected, const Floats& actual, const std::string& what) {
  ASSERT_EQ(expected.size(), actual.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(BitsOf(expected[i]), BitsOf(actual[i]))
        << what << " at " << i << ": " << expected[i] << " and " << actual[i];
  }
}

// Floats that are bf16 numbers.
ConstValues Bf16(const Floats& values) { return {values.data(), Format::kBfloat16}; }

struct Shape {
  int64_t m, n, k;
};
constexpr Shape kShapes[] = {{1, 1, 1},    {2, 9, 5},    {1, 24, 300}, {3, 3, 257}, {7, 33, 31},
                             {13, 65, 44}, {40, 130, 9}, {97, 20, 33}, {6, 96, 256}};

TEST_F(Bf16ProductsTest, EveryWayIsTheDefinition) {
  InEveryTarget([&](const char* target) {
    for (const Shape& s : kShapes) {
      const Floats x = Random(s.m * s.k);
      const Floats w = Random(s.n * s.k);
      const Floats bias = Random(s.n);
      const Floats old = Random(s.m * s.n);
      for (const bool accumulate : {false, true}) {
        Floats expected(old.size());
        for (int64_t i = 0; i < s.m; ++i) {
          for (int64_t j = 0; j < s.n; ++j) {
            const auto at = static_cast<size_t>(i * s.n + j);
            const float sum = Element(x, w, i, j, s.k, s.k, accumulate ? &old[at] : nullptr);
            expected[at] = FlushedAdd(sum, bias[static_cast<size_t>(j)]);
          }
        }
        for (const Bf16Method method : MethodsHere()) {
          SetBf16MethodForTest(method);
          Floats y = old;
          CreateCpuOps(2)->Matmul({.x = Bf16(x),
                                   .w = Bf16(w),
                                   .bias = bias.data(),
                                   .y = y.data(),
                                   .m = s.m,
                                   .n = s.n,
                                   .k = s.k,
                                   .accumulate = accumulate});
          ExpectSameBits(
              expected, y,
              std::string(target) + " method " + std::to_string(static_cast<int>(method)) + " of " +
                  std::to_string(s.m) + " x " + std::to_string(s.n) + " x " + std::to_string(s.k));
        }
      }
    }
  });
}

TEST_F(Bf16ProductsTest, GradientsToo) {
  InEveryTarget([&](const char* target) {
    for (const Shape& s : kShapes) {
      const Floats dy = Random(s.m * s.n);
      const Floats w = Random(s.n * s.k);
      const Floats x = Random(s.m * s.k);
      const Floats wt = Transposed(w, s.n, s.k);
      const Floats dyt = Transposed(dy, s.m, s.n);
      const Floats xt = Transposed(x, s.m, s.k);
      const int64_t leaf = s.m > 20 ? 19 : s.m;  // an odd one that does not divide
      Floats expected_dx(x.size());
      for (int64_t i = 0; i < s.m; ++i) {
        for (int64_t j = 0; j < s.k; ++j) {
          expected_dx[static_cast<size_t>(i * s.k + j)] = Element(dy, wt, i, j, s.n, s.n, nullptr);
        }
      }
      Floats expected_dw(w.size());
      for (int64_t i = 0; i < s.n; ++i) {
        for (int64_t j = 0; j < s.k; ++j) {
          const auto at = static_cast<size_t>(i * s.k + j);
          expected_dw[at] = Element(dyt, xt, i, j, s.m, leaf, &w[at]);
        }
      }
      for (const Bf16Method method : MethodsHere()) {
        SetBf16MethodForTest(method);
        const auto ops = CreateCpuOps(2);
        const std::string what =
            std::string(target) + " method " + std::to_string(static_cast<int>(method));
        Floats dx(x.size());
        ops->MatmulBackwardInput({.dy = Bf16(dy),
                                  .w = Bf16(w),
                                  .dx = dx.data(),
                                  .m = s.m,
                                  .n = s.n,
                                  .k = s.k,
                                  .accumulate = false});
        ExpectSameBits(expected_dx, dx, what + " dx");
        Floats dw = w;
        ops->MatmulBackwardWeight({.dy = Bf16(dy),
                                   .x = Bf16(x),
                                   .dw = dw.data(),
                                   .dbias = nullptr,
                                   .m = s.m,
                                   .n = s.n,
                                   .k = s.k,
                                   .rows_per_leaf = leaf,
                                   .accumulate = true});
        ExpectSameBits(expected_dw, dw, what + " dw");
      }
    }
  });
}

// Larger than the blocks of columns and rows, where the definition would take too long.
TEST_F(Bf16ProductsTest, LargeProductsAgree) {
  constexpr Shape kLarge[] = {{200, 700, 515}, {30, 3200, 70}};
  for (const Shape& s : kLarge) {
    const Floats x = Random(s.m * s.k);
    const Floats w = Random(s.n * s.k);
    std::vector<Floats> results;
    for (const Bf16Method method : MethodsHere()) {
      SetBf16MethodForTest(method);
      Floats y(static_cast<size_t>(s.m * s.n));
      CreateCpuOps(2)->Matmul({.x = Bf16(x),
                               .w = Bf16(w),
                               .bias = nullptr,
                               .y = y.data(),
                               .m = s.m,
                               .n = s.n,
                               .k = s.k,
                               .accumulate = false});
      results.push_back(y);
      ExpectSameBits(results.front(), y, std::to_string(static_cast<int>(method)));
    }
  }
}

TEST_F(Bf16ProductsTest, ASumThatFlushedToMinusZeroStaysMinusZero) {
  const Floats x = {-0x1p-70f, -0x1p-70f};  // for one row and for tiles
  const Floats w(20, 0x1p-70f);
  for (const Bf16Method method : MethodsHere()) {
    SetBf16MethodForTest(method);
    Floats y(40, 1.0f);
    CreateCpuOps(1)->Matmul({.x = Bf16(x),
                             .w = Bf16(w),
                             .bias = nullptr,
                             .y = y.data(),
                             .m = 1,
                             .n = 20,
                             .k = 1,
                             .accumulate = false});
    EXPECT_EQ(BitsOf(y[0]), 0x80000000u);
    CreateCpuOps(1)->MatmulBackwardWeight({.dy = Bf16(x),
                                           .x = Bf16(w),
                                           .dw = y.data(),
                                           .dbias = nullptr,
                                           .m = 1,
                                           .n = 2,
                                           .k = 20,
                                           .rows_per_leaf = 1,
                                           .accumulate = false});
    EXPECT_EQ(BitsOf(y[39]), 0x80000000u) << static_cast<int>(method);
  }
}

TEST_F(Bf16ProductsTest, OnlyBf16OperandsMakeDenormalsZero) {
  const Floats x(7, 0x1p-70f);
  const Floats w(9, 0x1p-70f);
  const unsigned before = _mm_getcsr();
  for (const Format operands : {Format::kFloat32, Format::kFloat16, Format::kBfloat16}) {
    Floats y(63);
    CreateCpuOps(2)->Matmul({.x = {x.data(), operands},
                             .w = {w.data(), operands},
                             .bias = nullptr,
                             .y = y.data(),
                             .m = 7,
                             .n = 9,
                             .k = 1,
                             .accumulate = false});
    const float expected = operands == Format::kBfloat16 ? 0.0f : 0x1p-140f;
    EXPECT_EQ(y, Floats(63, expected)) << static_cast<int>(operands);
  }
  constexpr unsigned kModes = 0x8040;  // flags of past exceptions may differ
  EXPECT_EQ(_mm_getcsr() & kModes, before & kModes);
  EXPECT_EQ(before & kModes, 0u);
}

TEST_F(Bf16ProductsTest, AResultIsRoundedAsByRound) {
  for (const Format result : {Format::kBfloat16, Format::kFloat16}) {
    for (const Shape& s : kShapes) {
      const Floats x = Random(s.m * s.k);
      const Floats w = Random(s.n * s.k);
      const Floats bias = Random(s.n);
      const Floats old = Random(s.m * s.n);
      for (const bool accumulate : {false, true}) {
        const auto ops = CreateCpuOps(2);
        Floats expected = old;
        MatmulArgs args{.x = x.data(),
                        .w = w.data(),
                        .bias = bias.data(),
                        .y = expected.data(),
                        .m = s.m,
                        .n = s.n,
                        .k = s.k,
                        .accumulate = accumulate};
        ops->Matmul(args);
        ops->Copy({expected.data(), result}, expected.data(), s.m * s.n);
        Floats y = old;
        args.y = {y.data(), result};
        ops->Matmul(args);
        ExpectSameBits(expected, y, "y");

        Floats expected_dx = x;
        MatmulBackwardInputArgs dx_args{.dy = old.data(),
                                        .w = w.data(),
                                        .dx = expected_dx.data(),
                                        .m = s.m,
                                        .n = s.n,
                                        .k = s.k,
                                        .accumulate = accumulate};
        ops->MatmulBackwardInput(dx_args);
        ops->Copy({expected_dx.data(), result}, expected_dx.data(), s.m * s.k);
        Floats dx = x;
        dx_args.dx = {dx.data(), result};
        ops->MatmulBackwardInput(dx_args);
        ExpectSameBits(expected_dx, dx, "dx");
      }
    }
  }
}

// A Dot as a scalar function of (a, b, sum).
template <typename Dot>
Bf16DotsFunction Scalar(const Dot& dot) {
  return
      [dot](const uint32_t* a, const uint32_t* b, const float* start, int64_t steps, float* out) {
        for (int64_t lane = 0; lane < kDotLanes; ++lane) {
          float sum = start[lane];
          for (int64_t step = 0; step < steps; ++step) {
            sum = dot(a[step * kDotLanes + lane], b[step * kDotLanes + lane], sum);
          }
          out[lane] = sum;
        }
      };
}

float First(uint32_t pair) { return FromBits(pair & 0xffff0000u); }
float Second(uint32_t pair) { return FromBits(pair << 16); }

TEST(SelfCheck, TakesTheDefinition) {
  EXPECT_TRUE(AreChainsOfFma(Scalar([](uint32_t a, uint32_t b, float sum) {
    return FlushedFma(Second(a), Second(b), FlushedFma(First(a), First(b), sum));
  })));
  InEveryTarget(
      [](const char* target) { EXPECT_TRUE(HasBitsOfFloat(Bf16Method::kPairs)) << target; });
}

TEST(SelfCheck, NoticesOtherArithmetic) {
  EXPECT_FALSE(AreChainsOfFma(Scalar([](uint32_t a, uint32_t b, float sum) {
    return FlushedFma(First(a), First(b), FlushedFma(Second(a), Second(b), sum));
  }))) << "the other order";
  EXPECT_FALSE(AreChainsOfFma(Scalar([](uint32_t a, uint32_t b, float sum) {
    return std::fmaf(Second(a), Second(b), std::fmaf(First(a), First(b), sum));
  }))) << "denormals";
  EXPECT_FALSE(AreChainsOfFma(Scalar([](uint32_t a, uint32_t b, float sum) {
    return Flush(std::fmaf(Flush(Second(a)), Flush(Second(b)),
                           Flush(std::fmaf(Flush(First(a)), Flush(First(b)), Flush(sum)))));
  }))) << "what rounds up to the least normal number is flushed";
  EXPECT_FALSE(AreChainsOfFma(Scalar([](uint32_t a, uint32_t b, float sum) {
    const double both = static_cast<double>(Flush(First(a))) * Flush(First(b)) +
                        static_cast<double>(Flush(Second(a))) * Flush(Second(b));
    return Flush(static_cast<float>(both + Flush(sum)));
  }))) << "one rounding";
  EXPECT_FALSE(AreChainsOfFma(Scalar([](uint32_t a, uint32_t b, float sum) {
    const float result = FlushedFma(Second(a), Second(b), FlushedFma(First(a), First(b), sum));
    return result == 0 ? 0.0f : result;
  }))) << "the sign of zero";
}

TEST(Choice, TheInstructionNeedsEqualBitsAndLessTime) {
  const Bf16Facts none{false, false, 0, 0};
  const Bf16Facts other_bits{true, false, 0, 0};
  const Bf16Facts faster{true, true, 2.1e-3, 1e-3};
  const Bf16Facts slower{true, true, 1e-3, 1.25e-3};
  const Bf16Facts equal{true, true, 1e-3, 1e-3};
  EXPECT_EQ(ChooseBf16Method(none), Bf16Method::kFloat);
  EXPECT_EQ(ChooseBf16Method(other_bits), Bf16Method::kFloat);
  EXPECT_EQ(ChooseBf16Method(faster), Bf16Method::kInstruction);
  EXPECT_EQ(ChooseBf16Method(slower), Bf16Method::kFloat);
  EXPECT_EQ(ChooseBf16Method(equal), Bf16Method::kFloat);
  // Facts that cannot be: still no instruction that the processor lacks or that was not compared.
  EXPECT_EQ(ChooseBf16Method({false, true, 2e-3, 1e-3}), Bf16Method::kFloat);
  EXPECT_EQ(ChooseBf16Method({true, false, 2e-3, 1e-3}), Bf16Method::kFloat);

  EXPECT_EQ(DescribeBf16Products(none), "fp32 arithmetic: this processor has no AVX512_BF16");
  EXPECT_THAT(DescribeBf16Products(other_bits), ::testing::HasSubstr("does not have the bits"));
  EXPECT_EQ(DescribeBf16Products(faster), "AVX512_BF16, 2.1 times the speed of fp32");
  EXPECT_EQ(DescribeBf16Products(slower),
            "fp32 arithmetic: AVX512_BF16 has 0.8 times the speed of fp32 here");
}

TEST(Choice, TimesAreTheShortestOfTurns) {
  double now = 100;
  const std::vector<double> first_takes = {9, 3, 2, 4, 2.5, 3};
  const std::vector<double> second_takes = {9, 1, 1.5, 0.5, 1, 7};
  size_t first_runs = 0;
  size_t second_runs = 0;
  const Seconds seconds =
      TimeBoth([&] { now += first_takes.at(first_runs++); },
               [&] { now += second_takes.at(second_runs++); }, [&] { return now; });
  EXPECT_EQ(seconds.first, 2);
  EXPECT_EQ(seconds.second, 0.5);
  EXPECT_EQ(first_runs, first_takes.size());
  EXPECT_EQ(second_runs, second_takes.size());
}

TEST(Choice, OfThisProcess) {
  const Bf16Facts& facts = Bf16FactsOfProcess();
  std::printf("bf16 products here: %s\n", DescribeBf16Products(facts).c_str());
  EXPECT_EQ(facts.has_instruction, HasBf16Instruction());
  EXPECT_EQ(Bf16MethodOfProcess(), ChooseBf16Method(facts));
  EXPECT_EQ(facts.same_bits && facts.float_seconds <= 0, false);
}

}  // namespace
}  // namespace tercio::kernels
