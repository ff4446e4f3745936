// AdamW, and the sums around it.
#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/cpu/parts.h"

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

}  // namespace tercio::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tercio::kernels {

HWY_EXPORT(AdamWRange);
HWY_EXPORT(AddRange);

namespace {

constexpr int64_t kBlock = 65536;

template <typename Body>
void OverBlocks(int64_t count, ThreadPool& pool, const Body& body) {
  // Blocks have a fixed size, so sums over them do not depend on the number of threads.
  pool.ParallelFor((count + kBlock - 1) / kBlock, [&](int64_t block, int) {
    body(block, block * kBlock, std::min(count, (block + 1) * kBlock));
  });
}

// Squares of floats are exact in double, so only the order of the additions matters: 16 interleaved
// sums, added in ascending order.
double SumOfSquaresOfBlock(const float* a, int64_t count) {
  double sums[16] = {};
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    for (int lane = 0; lane < 16; ++lane) {
      const double value = a[i + lane];
      sums[lane] += value * value;
    }
  }
  for (int lane = 0; i + lane < count; ++lane) {
    const double value = a[i + lane];
    sums[lane] += value * value;
  }
  double sum = 0;
  for (const double part : sums) sum += part;
  return sum;
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

double SumOfSquaresCpu(const float* a, int64_t count, ThreadPool& pool) {
  std::array<double, 512> parts{};  // sums of as many blocks at once
  // A run of blocks bounds the array, whatever the size of the tensor.
  constexpr int64_t kRun = static_cast<int64_t>(parts.size()) * kBlock;
  double sum = 0;
  for (int64_t first = 0; first < count; first += kRun) {
    const int64_t run = std::min(kRun, count - first);
    // Each block has a place of its own, so nothing is added in the order in which threads finish.
    OverBlocks(run, pool, [&](int64_t block, int64_t begin, int64_t end) {
      parts[static_cast<size_t>(block)] = SumOfSquaresOfBlock(a + first + begin, end - begin);
    });
    for (int64_t block = 0; block * kBlock < run; ++block) sum += parts[static_cast<size_t>(block)];
  }
  return sum;
}

}  // namespace tercio::kernels
#endif
