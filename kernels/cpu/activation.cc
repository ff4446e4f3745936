// GELU in both forms, and tanh: element-wise, so that nothing depends on how rows are split.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/parts.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/activation.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/rounding-inl.h"
#include "kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tercio::kernels::HWY_NAMESPACE {

// gelu(x) = x * s with s = 1 / (1 + exp(-2u)), u = sqrt(2/pi) (x + 0.044715 x^3): the tanh form.
struct TanhGelu {
  static HWY_INLINE Vector Share(Vector x) {
    const Tag d;
    const Vector x2 = hn::Mul(x, x);
    // The factor is -2 sqrt(2 / pi), so that Exp(u) is the exp(-2u) of the formula.
    const Vector u = hn::Mul(hn::Mul(x, hn::Set(d, -1.5957691216057308f)),
                             hn::MulAdd(x2, hn::Set(d, 0.044715f), hn::Set(d, 1.0f)));
    return hn::Div(hn::Set(d, 1.0f), hn::Add(hn::Set(d, 1.0f), Exp(u)));
  }
  // d gelu / dx = s + x s (1 - s) 2 u',  2 u' = 2 sqrt(2/pi) (1 + 3 * 0.044715 x^2)
  static HWY_INLINE Vector Slope(Vector x) {
    const Tag d;
    const Vector s = Share(x);
    const Vector slope =
        hn::MulAdd(hn::Mul(x, x), hn::Set(d, 0.2140644488f), hn::Set(d, 1.5957691216f));
    return hn::Add(s, hn::Mul(hn::Mul(x, s), hn::Mul(hn::Sub(hn::Set(d, 1.0f), s), slope)));
  }
};

// gelu(x) = x Phi(x). For x >= 0, Phi(-x) = exp(-x^2 / 2) t P(t) with t = 1 / (1 + 0.3 x): P is a
// least-squares fit of the relative error over [0, 13.2], which is below 1e-8.
struct ExactGelu {
  static HWY_INLINE Vector Density(Vector x) {  // sqrt(2 pi) times that of the normal distribution
    const Tag d;
    return Exp(hn::Mul(hn::Mul(x, x), hn::Set(d, -0.5f)));
  }
  static HWY_INLINE Vector Distribution(Vector x, Vector density) {
    const Tag d;
    const Vector one = hn::Set(d, 1.0f);
    // t maps all of x >= 0 to (0, 1], where one polynomial suffices.
    const Vector t = hn::Div(one, hn::MulAdd(hn::Abs(x), hn::Set(d, 0.3f), one));
    Vector p = hn::Set(d, -0.020876582711935043f);
    for (const float factor : {0.11379720270633698f, -0.23137788474559784f, 0.19594357907772064f,
                               -0.08282140642404556f, 0.09794124960899353f, 0.07778900861740112f,
                               0.1103600487112999f, 0.11955738067626953f, 0.11968740075826645f}) {
      p = hn::MulAdd(p, t, hn::Set(d, factor));
    }
    const Vector tail = hn::Mul(hn::Mul(density, t), p);
    // The small side is the one that is computed, so that it keeps its digits; 1 - tail would lose
    // them.
    return hn::IfThenElse(hn::Lt(x, hn::Zero(d)), tail, hn::Sub(one, tail));
  }
  static HWY_INLINE Vector Share(Vector x) { return Distribution(x, Density(x)); }
  // d gelu / dx = Phi(x) + x phi(x)
  static HWY_INLINE Vector Slope(Vector x) {
    const Tag d;
    const Vector density = Density(x);
    return hn::MulAdd(hn::Mul(x, hn::Set(d, 0.3989422804f)), density, Distribution(x, density));
  }
};

template <typename Gelu>
HWY_INLINE void GeluRange(const GeluArgs& a, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    const float* h = a.h + i * a.columns;
    float* g = a.g + i * a.columns;
    ForVectors(a.columns, [&](auto load, auto store) HWY_ATTR {
      const Vector x = load(h);
      store(hn::Mul(x, Gelu::Share(x)), g);
    });
    // The row is rounded while it is still in the cache.
    RoundRow(g, a.columns, a.g.format());
  }
}

template <typename Gelu>
HWY_INLINE void GeluBackwardRange(const GeluBackwardArgs& a, int64_t begin, int64_t end) {
  const float* dg = a.dg + begin;
  const float* h = a.h + begin;
  float* dh = a.dh + begin;
  ForVectors(end - begin, [&](auto load, auto store)
                              HWY_ATTR { store(hn::Mul(load(dg), Gelu::Slope(load(h))), dh); });
}

void GeluRows(const GeluArgs& a, int64_t begin, int64_t end) {
  a.exact ? GeluRange<ExactGelu>(a, begin, end) : GeluRange<TanhGelu>(a, begin, end);
}

void GeluBackwardElements(const GeluBackwardArgs& a, int64_t begin, int64_t end) {
  a.exact ? GeluBackwardRange<ExactGelu>(a, begin, end)
          : GeluBackwardRange<TanhGelu>(a, begin, end);
}

}  // namespace tercio::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tercio::kernels {

HWY_EXPORT(GeluRows);
HWY_EXPORT(GeluBackwardElements);

void GeluCpu(const GeluArgs& args, ThreadPool& pool) {
  OverRows(args.rows, args.columns, pool, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(GeluRows)(args, begin, end);
  });
}

void GeluBackwardCpu(const GeluBackwardArgs& args, ThreadPool& pool) {
  OverRows(args.rows, args.columns, pool, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(GeluBackwardElements)(args, begin * args.columns, end * args.columns);
  });
}

// One row for each sequence: in double, where no cancellation shows in the float.
void BiasTanhCpu(const BiasTanhArgs& args, ThreadPool& pool) {
  OverRows(args.rows, args.columns, pool, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      float* y = args.y + i * args.columns;
      for (int64_t c = 0; c < args.columns; ++c) {
        const float x = args.bias == nullptr ? y[c] : y[c] + args.bias[c];
        // The exponent is never positive, so nothing overflows.
        const double e = std::exp(-2.0 * std::abs(double{x}));
        y[c] = static_cast<float>(std::copysign((1 - e) / (1 + e), double{x}));
      }
    }
  });
}

void TanhBackwardCpu(const TanhBackwardArgs& args, ThreadPool& pool) {
  OverRows(args.count, 1, pool, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      args.dx[i] = args.dy[i] * (1.0f - args.y[i] * args.y[i]);
    }
  });
}

}  // namespace tercio::kernels
#endif
