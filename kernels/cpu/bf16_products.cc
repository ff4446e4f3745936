#include "kernels/cpu/bf16_products.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "hwy/aligned_allocator.h"
#include "kernels/cpu/thread_pool.h"

namespace tercio::kernels {
namespace {

// With a fixed seed all processes on one kind of processor come to the same verdict.
constexpr uint64_t kSeed = 20261121;
constexpr int kNoMethod = -1;
std::atomic<int> method_for_test{kNoMethod};

float FromBits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

bool SameNumbers(const float* a, const float* b, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    // Which payload a NaN keeps differs between processors, so NaNs count as equal.
    if (std::isnan(a[i]) ? !std::isnan(b[i]) : std::memcmp(a + i, b + i, sizeof(float)) != 0) {
      return false;
    }
  }
  return true;
}

// bf16 patterns from the corners of the format: zeros, denormals, the least and the largest normal
// numbers, 1 and its neighbours, infinities, NaN.
constexpr std::array<uint16_t, 16> kCornerPatterns = {
    0x0000, 0x8000, 0x0001, 0x807f, 0x0080, 0x8081, 0x3f80, 0xbf81,
    0x3f7f, 0x1f80, 0x9f81, 0x7f7f, 0xff7f, 0x7f80, 0xff80, 0x7fc0};

enum class Kind { kCorners, kAny, kLikeSize, kAboutLeastNormal };

uint32_t RandomHalf(std::mt19937_64& random, Kind kind) {
  // The bits of one number give both the exponent and the pattern, from different places.
  const auto word = static_cast<uint32_t>(random());
  const uint32_t exponent = word >> 20;
  switch (kind) {
    case Kind::kCorners:
      return kCornerPatterns[word % kCornerPatterns.size()];
    case Kind::kAny:
      return word & 0xffffu;
    case Kind::kLikeSize:  // their sums round
      return (word & 0x807fu) | (123 + exponent % 8) << 7;
    case Kind::kAboutLeastNormal:  // products from 2^-160 to 2^-123
      return (word & 0x807fu) | (47 + exponent % 19) << 7;
  }
  return 0;
}

// Sums of `steps` Dots that start at zero or anywhere, also where they cancel a product.
bool AreChains(const Bf16DotsFunction& dots, std::mt19937_64& random, Kind kind, int64_t steps) {
  std::vector<uint32_t> a(static_cast<size_t>(kDotLanes * steps));
  std::vector<uint32_t> b(a.size());
  for (size_t i = 0; i < a.size(); ++i) {
    a[i] = RandomHalf(random, kind) << 16 | RandomHalf(random, kind);
    b[i] = RandomHalf(random, kind) << 16 | RandomHalf(random, kind);
  }
  std::array<float, kDotLanes> start;
  for (size_t lane = 0; lane < start.size(); ++lane) {
    // Starting values that cancel the product show whether it was rounded before the addition.
    const auto word = static_cast<uint32_t>(random());
    const float product = FromBits(a[lane] & 0xffff0000u) * FromBits(b[lane] & 0xffff0000u);
    const float choices[] = {0.0f,           -0.0f,
                             -product,       std::nextafterf(-product, 0.0f),
                             FromBits(word), FromBits(word & 0x80ffffffu),
                             0x1p-126f,      -0x1p-126f};
    start[lane] = choices[random() % std::size(choices)];
  }
  std::array<float, kDotLanes> expected;
  std::array<float, kDotLanes> actual;
  // Pairs of FMAs are the definition that the other way is compared with.
  Bf16Dots(Bf16Method::kPairs, a.data(), b.data(), start.data(), steps, expected.data());
  dots(a.data(), b.data(), start.data(), steps, actual.data());
  return SameNumbers(expected.data(), actual.data(), kDotLanes);
}

// bf16 values of like size, some of them so small that their products are denormal.
std::vector<float> RandomValues(std::mt19937_64& random, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) {
    const auto word = static_cast<uint32_t>(random());
    const uint32_t exponent = word % 16 == 0 ? 0x1f80u : 0x3e80u;
    value = FromBits(((word >> 16 & 0x80ffu) | exponent) << 16);
  }
  return values;
}

// A product whose operands lie in memory as the model's do: `kind` 0 y = x w^T, 1 dx = dy w,
// 2 dw = dy^T x.
struct Product {
  int64_t m, n, k;
  int64_t leaf;
  int kind;

  GemmArgs ArgsOf(const float* a, const float* b, float* c, Bf16Method method) const {
    GemmArgs args{};
    args.a = a;
    // The strides say how the operand lies in memory, so that both ways of packing are compared.
    args.a_row_stride = kind == 2 ? 1 : k;
    args.a_column_stride = kind == 2 ? m : 1;
    args.b = b;
    args.b_row_stride = kind == 0 ? 1 : n;
    args.b_column_stride = kind == 0 ? k : 1;
    args.c = c;
    args.m = m;
    args.n = n;
    args.k = k;
    args.leaf = leaf;
    args.operands = Format::kBfloat16;
    args.method = method;
    return args;
  }
};

class Products {
 public:
  Products()
      // One thread is enough: bits do not depend on the threads, and the times only on both alike.
      : pool_(1),
        scratch_(hwy::AllocateAligned<float>(static_cast<size_t>(GemmScratch(pool_.threads())))) {}
  void Run(const GemmArgs& args) { Gemm(args, pool_, scratch_.get()); }

 private:
  ThreadPool pool_;
  hwy::AlignedFreeUniquePtr<float[]> scratch_;
};

bool SameProduct(Bf16Method method, std::mt19937_64& random, const Product& product,
                 Products& products) {
  const std::vector<float> a = RandomValues(random, product.m * product.k);
  const std::vector<float> b = RandomValues(random, product.k * product.n);
  std::vector<float> expected(static_cast<size_t>(product.m * product.n));
  std::vector<float> actual(expected.size());
  // The plain way computes what the other must equal.
  products.Run(product.ArgsOf(a.data(), b.data(), expected.data(), Bf16Method::kFloat));
  products.Run(product.ArgsOf(a.data(), b.data(), actual.data(), method));
  return SameNumbers(expected.data(), actual.data(), static_cast<int64_t>(actual.size()));
}

double SteadyNow() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Bf16Facts Measure(const std::function<double()>& now) {
  Bf16Facts facts;
  facts.has_instruction = HasBf16Instruction();
  // What could not be used anyway is neither compared nor timed.
  if (!facts.has_instruction) return facts;
  facts.same_bits = HasBitsOfFloat(Bf16Method::kInstruction);
  if (!facts.same_bits) return facts;
  // The three products of a layer of a small model, half a millisecond and less each.
  constexpr int64_t kRows = 192;
  constexpr int64_t kColumns = 512;
  constexpr int64_t kDepth = 256;
  std::mt19937_64 random(kSeed);
  const std::vector<float> a = RandomValues(random, kRows * kDepth);
  const std::vector<float> b = RandomValues(random, kDepth * kColumns);
  std::vector<float> c(static_cast<size_t>(kRows * kColumns));
  Products products;
  const auto run = [&](Bf16Method method) {
    // The three kinds pack their operands in different ways, each at its own cost.
    for (const int kind : {0, 1, 2}) {
      const Product product = {kRows, kColumns, kDepth, kDepth, kind};
      products.Run(product.ArgsOf(a.data(), b.data(), c.data(), method));
    }
  };
  const Seconds seconds =
      TimeBoth([&] { run(Bf16Method::kFloat); }, [&] { run(Bf16Method::kInstruction); }, now);
  facts.float_seconds = seconds.first;
  facts.instruction_seconds = seconds.second;
  return facts;
}

}  // namespace

Bf16Method ChooseBf16Method(const Bf16Facts& facts) {
  // If both take the same time, the plain way is preferred.
  const bool faster = facts.instruction_seconds < facts.float_seconds;
  return facts.has_instruction && facts.same_bits && faster ? Bf16Method::kInstruction
                                                            : Bf16Method::kFloat;
}

std::string DescribeBf16Products(const Bf16Facts& facts) {
  if (!facts.has_instruction) return "fp32 arithmetic: this processor has no AVX512_BF16";
  if (!facts.same_bits) {
    return "fp32 arithmetic: this processor's AVX512_BF16 does not have the bits of two fused "
           "multiply-adds";
  }
  std::array<char, 64> ratio;
  std::snprintf(ratio.data(), ratio.size(), "%.1f times the speed of fp32",
                facts.float_seconds / facts.instruction_seconds);
  if (ChooseBf16Method(facts) == Bf16Method::kInstruction) {
    return std::string("AVX512_BF16, ") + ratio.data();
  }
  return std::string("fp32 arithmetic: AVX512_BF16 has ") + ratio.data() + " here";
}

bool AreChainsOfFma(const Bf16DotsFunction& dots) {
  std::mt19937_64 random(kSeed);
  for (const Kind kind : {Kind::kCorners, Kind::kAny, Kind::kLikeSize, Kind::kAboutLeastNormal}) {
    // Many short sums try many values; the long ones show errors that add up.
    for (int round = 0; round < 500; ++round) {
      if (!AreChains(dots, random, kind, 1)) return false;
    }
    for (int round = 0; round < 10; ++round) {
      if (!AreChains(dots, random, kind, 128)) return false;
    }
  }
  return true;
}

bool HasBitsOfFloat(Bf16Method method) {
  const auto dots = [method](const uint32_t* a, const uint32_t* b, const float* start,
                             int64_t steps,
                             float* out) { Bf16Dots(method, a, b, start, steps, out); };
  if (!AreChainsOfFma(dots)) return false;
  std::mt19937_64 random(kSeed);
  // Odd depths, several pieces, leaves, tails of rows and columns, more columns than are packed.
  Products products;
  for (const Product& product :
       {Product{13, 37, 301, 301, 0}, Product{25, 70, 77, 77, 1}, Product{27, 65, 90, 31, 2}}) {
    if (!SameProduct(method, random, product, products)) return false;
  }
  return true;
}

Seconds TimeBoth(const std::function<void()>& first, const std::function<void()>& second,
                 const std::function<double()>& now) {
  // The clock is an argument, so that tests can decide which way is faster.
  const auto time = [&](const std::function<void()>& work) {
    const double begin = now();
    work();
    return now() - begin;
  };
  first();  // caches, and the clock of the processor
  second();
  Seconds best = {time(first), time(second)};
  for (int i = 0; i < 4; ++i) {
    // The least of several times is the one that other processes have disturbed least.
    best.first = std::min(best.first, time(first));
    best.second = std::min(best.second, time(second));
  }
  return best;
}

const Bf16Facts& Bf16FactsOfProcess() {
  // One measurement serves the whole process; the language makes other threads wait for it.
  static const Bf16Facts facts = Measure(SteadyNow);
  return facts;
}

Bf16Method Bf16MethodOfProcess() {
  const int set = method_for_test.load(std::memory_order_relaxed);
  // A test's choice is looked for first, so that it costs no measurement.
  if (set != kNoMethod) return static_cast<Bf16Method>(set);
  static const Bf16Method method = ChooseBf16Method(Bf16FactsOfProcess());
  return method;
}

void SetBf16MethodForTest(Bf16Method method) { method_for_test.store(static_cast<int>(method)); }

void ResetBf16MethodForTest() { method_for_test.store(kNoMethod); }

}  // namespace tercio::kernels
