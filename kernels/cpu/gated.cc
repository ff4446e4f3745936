// SwiGLU and rotary positions: element-wise, so that nothing depends on how rows are split.
#include <algorithm>

#include "kernels/cpu/parts.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/gated.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/rounding-inl.h"
#include "kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tercio::kernels::HWY_NAMESPACE {

HWY_INLINE Vector Sigmoid(Vector x) {
  const Tag d;
  const Vector one = hn::Set(d, 1.0f);
  // Exp clamps its argument, so that the quotient is a number for every x.
  return hn::Div(one, hn::Add(one, Exp(hn::Neg(x))));
}

void SwigluRows(const SwigluArgs& a, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    // One product makes gate and up, which therefore lie side by side in a row.
    const float* gate = a.h + i * 2 * a.columns;
    const float* up = gate + a.columns;
    float* g = a.g + i * a.columns;
    ForVectors(a.columns, [&](auto load, auto store) HWY_ATTR {
      const Vector x = load(gate);
      store(hn::Mul(hn::Mul(x, Sigmoid(x)), load(up)), g);
    });
    // The row is rounded while it is still in the cache.
    RoundRow(g, a.columns, a.g.format());
  }
}

// silu'(x) = s + x s (1 - s)
void SwigluBackwardRows(const SwigluBackwardArgs& a, int64_t begin, int64_t end) {
  const Tag d;
  for (int64_t i = begin; i < end; ++i) {
    const float* gate = a.h + i * 2 * a.columns;
    const float* up = gate + a.columns;
    const float* dg = a.dg + i * a.columns;
    float* dgate = a.dh + i * 2 * a.columns;
    float* dup = dgate + a.columns;
    ForVectors(a.columns, [&](auto load, auto store) HWY_ATTR {
      // The sigmoid is computed again, which costs less than storing it between the passes.
      const Vector x = load(gate);
      const Vector s = Sigmoid(x);
      const Vector silu = hn::Mul(x, s);
      const Vector slope = hn::MulAdd(silu, hn::Sub(hn::Set(d, 1.0f), s), s);
      const Vector g = load(dg);
      store(hn::Mul(hn::Mul(g, load(up)), slope), dgate);
      store(hn::Mul(g, silu), dup);
    });
  }
}

void RotaryRows(const RotaryArgs& a, int64_t begin, int64_t end) {
  const Tag d;
  const int64_t half = a.head_dim / 2;
  // The inverse of a rotation has the opposite sine, and is also its gradient.
  const Vector sign = hn::Set(d, a.inverse ? -1.0f : 1.0f);
  for (int64_t i = begin; i < end; ++i) {
    // The table has one row for each position, cosines before sines.
    const float* cosine = a.table + i % a.tokens * a.head_dim;
    const float* sine = cosine + half;
    for (int64_t head = 0; head < a.heads; ++head) {
      // Pairs are half a head apart, as in Llama's weights from Hugging Face.
      float* low = a.x + i * a.stride + head * a.head_dim;
      float* high = low + half;
      ForVectors(half, [&](auto load, auto store) HWY_ATTR {
        const Vector c = load(cosine);
        const Vector s = hn::Mul(load(sine), sign);
        const Vector x = load(low);
        const Vector y = load(high);
        store(hn::NegMulAdd(y, s, hn::Mul(x, c)), low);
        store(hn::MulAdd(x, s, hn::Mul(y, c)), high);
      });
    }
  }
}

}  // namespace tercio::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tercio::kernels {

HWY_EXPORT(SwigluRows);
HWY_EXPORT(SwigluBackwardRows);
HWY_EXPORT(RotaryRows);

void SwigluCpu(const SwigluArgs& args, ThreadPool& pool) {
  OverRows(args.rows, args.columns, pool, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(SwigluRows)(args, begin, end);
  });
}

void SwigluBackwardCpu(const SwigluBackwardArgs& args, ThreadPool& pool) {
  OverRows(args.rows, args.columns, pool, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(SwigluBackwardRows)(args, begin, end);
  });
}

void RotaryCpu(const RotaryArgs& args, ThreadPool& pool) {
  OverRows(args.rows, args.heads * args.head_dim, pool, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(RotaryRows)(args, begin, end);
  });
}

}  // namespace tercio::kernels
#endif
