// AdamW, and the operations around it on buffers without shape.
#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <iterator>

#include "kernels/cpu/parts.h"
#include "kernels/exact_sum.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/optimizer.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tercio::kernels::HWY_NAMESPACE {

// Loshchilov & Hutter, "Decoupled weight decay regularization", algorithm 2, in the order of
// operations of torch.optim.AdamW.
void AdamWRange(const AdamWArgs& a, const AdamWTensor& tensor, int64_t begin, int64_t end) {
  const Tag d;
  // The decay is taken off the parameter itself, and does not pass through the moments.
  const Vector keep = hn::Set(d, 1.0f - a.learning_rate * tensor.weight_decay);
  const Vector clip = hn::Set(d, a.clip);
  // 1 - beta is taken in double: in fp32 0.999 has few digits left after it.
  const Vector rest1 = hn::Set(d, static_cast<float>(1.0 - static_cast<double>(a.beta1)));
  const Vector beta2 = hn::Set(d, a.beta2);
  const Vector rest2 = hn::Set(d, static_cast<float>(1.0 - static_cast<double>(a.beta2)));
  const Vector eps = hn::Set(d, a.eps);
  const Vector root2 = hn::Set(d, static_cast<float>(std::sqrt(a.bias_correction2)));
  const Vector step = hn::Set(d, static_cast<float>(-a.learning_rate / a.bias_correction1));
  float* parameter = tensor.parameter + begin;
  const float* gradient = tensor.gradient + begin;
  float* m_all = tensor.m + begin;
  float* v_all = tensor.v + begin;
  ForVectors(end - begin, [&](auto load, auto store) HWY_ATTR {
    const Vector g = hn::Mul(load(gradient), clip);
    const Vector old_m = load(m_all);
    const Vector m = hn::MulAdd(hn::Sub(g, old_m), rest1, old_m);
    const Vector v = hn::MulAdd(hn::Mul(g, g), rest2, hn::Mul(load(v_all), beta2));
    const Vector denominator = hn::Add(hn::Div(hn::Sqrt(v), root2), eps);
    const Vector p = hn::Mul(load(parameter), keep);
    store(m, m_all);
    store(v, v_all);
    store(hn::MulAdd(step, hn::Div(m, denominator), p), parameter);
  });
}

void AddRange(float* a, const float* b, int64_t count) {
  ForVectors(count, [&](auto load, auto store) HWY_ATTR { store(hn::Add(load(a), load(b)), a); });
}

void ScaleRange(float* a, float factor, int64_t count) {
  const Vector factors = hn::Set(Tag(), factor);
  ForVectors(count, [&](auto load, auto store) HWY_ATTR { store(hn::Mul(load(a), factors), a); });
}

// 16 interleaved sums whatever the width of a vector. Squares of floats are exact in double, so a
// fused multiply-add has the bits of a product and a sum.
double SquaresOfBlock(const float* a, int64_t count) {
  constexpr int64_t kSums = 16;
  const hn::CappedTag<double, 8> d;
  const hn::Rebind<float, decltype(d)> narrow;
  constexpr auto kWidth = static_cast<int64_t>(hn::MaxLanes(d));
  hn::Vec<decltype(d)> sums[kSums / kWidth];
  for (auto& sum : sums) sum = hn::Zero(d);
  int64_t i = 0;
  for (; i + kSums <= count; i += kSums) {
    for (int64_t k = 0; k < kSums / kWidth; ++k) {
      const auto value = hn::PromoteTo(d, hn::LoadU(narrow, a + i + k * kWidth));
      sums[k] = hn::MulAdd(value, value, sums[k]);
    }
  }
  double lanes[kSums];
  for (int64_t k = 0; k < kSums / kWidth; ++k) hn::StoreU(sums[k], d, lanes + k * kWidth);
  for (int64_t lane = 0; i + lane < count; ++lane) {
    const double value = a[i + lane];
    lanes[lane] += value * value;
  }
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

}  // namespace tercio::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tercio::kernels {

HWY_EXPORT(AdamWRange);
HWY_EXPORT(AddRange);
HWY_EXPORT(ScaleRange);
HWY_EXPORT(SquaresOfBlock);

namespace {

constexpr int64_t kBlock = 65536;

template <typename Body>
void OverBlocks(int64_t count, ThreadPool& pool, const Body& body) {
  // Blocks have a fixed size, so sums over them do not depend on the number of threads.
  pool.ParallelFor((count + kBlock - 1) / kBlock, [&](int64_t block, int) {
    body(block, block * kBlock, std::min(count, (block + 1) * kBlock));
  });
}

int64_t CountNotFinite(const float* a, int64_t count) {
  return std::count_if(a, a + count, [](float value) { return !std::isfinite(value); });
}

}  // namespace

void AdamWCpu(const AdamWArgs& args, const AdamWTensor& tensor, ThreadPool& pool) {
  OverBlocks(tensor.count, pool, [&](int64_t, int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(AdamWRange)(args, tensor, begin, end);
  });
}

void AddCpu(float* a, const float* b, int64_t count, ThreadPool& pool) {
  OverBlocks(count, pool, [&](int64_t, int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(AddRange)(a + begin, b + begin, end - begin);
  });
}

void ScaleCpu(float* a, float factor, int64_t count, ThreadPool& pool) {
  OverBlocks(count, pool, [&](int64_t, int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(ScaleRange)(a + begin, factor, end - begin);
  });
}

void SumsOfSquaresCpu(const SumsOfSquaresArgs& args, ThreadPool& pool) {
  // Sums of integers: the order in which threads finish does not matter.
  std::array<std::atomic<int64_t>, kSumLimbs> limbs{};
  for (int64_t t = 0; t < args.tensor_count; ++t) {
    const SquaredTensor& tensor = args.tensors[t];
    std::atomic<int64_t> not_finite{0};
    OverBlocks(tensor.count, pool, [&](int64_t, int64_t begin, int64_t end) {
      int64_t own[kSumLimbs] = {};
      for (int64_t at = begin; at < end; at += kSquaresBlock) {
        const float* values = tensor.values + at;
        const int64_t count = std::min(kSquaresBlock, end - at);
        const double sum = HWY_DYNAMIC_DISPATCH(SquaresOfBlock)(values, count);
        // A float's square is finite in double, so that a sum tells of every element.
        if (std::isfinite(sum)) {
          AddToLimbs(sum, own);
        } else {
          not_finite += CountNotFinite(values, count);
        }
      }
      for (size_t i = 0; i < limbs.size(); ++i) {
        if (own[i] != 0) limbs[i] += own[i];
      }
    });
    *tensor.not_finite = static_cast<double>(not_finite);
  }
  int64_t carried[kSumLimbs];
  std::copy(limbs.begin(), limbs.end(), carried);
  CarryLimbs(carried);
  std::copy(std::begin(carried), std::end(carried), args.limbs);
}

}  // namespace tercio::kernels
#endif
