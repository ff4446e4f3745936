// Activations and tanh: element-wise, so that nothing depends on how rows are split.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/parts.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/activation.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/activation-inl.h"
#include "kernels/cpu/rounding-inl.h"
#include "kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tercio::kernels::HWY_NAMESPACE {

template <typename Function>
HWY_INLINE void ActivateRange(const ActivationArgs& a, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    const float* h = a.h + i * a.columns;
    float* g = a.g + i * a.columns;
    ForVectors(a.columns,
               [&](auto load, auto store) HWY_ATTR { store(Function::Value(load(h)), g); });
    // The row is rounded while it is still in the cache.
    RoundRow(g, a.columns, a.g.format());
  }
}

template <typename Function>
HWY_INLINE void ActivateBackwardRange(const ActivationBackwardArgs& a, int64_t begin, int64_t end) {
  const float* dg = a.dg + begin;
  const float* h = a.h + begin;
  float* dh = a.dh + begin;
  ForVectors(end - begin, [&](auto load, auto store)
                              HWY_ATTR { store(hn::Mul(load(dg), Function::Slope(load(h))), dh); });
}

void ActivateRows(const ActivationArgs& a, int64_t begin, int64_t end) {
  ByFunction(a.function,
             [&](auto function) HWY_ATTR { ActivateRange<decltype(function)>(a, begin, end); });
}

void ActivateBackwardElements(const ActivationBackwardArgs& a, int64_t begin, int64_t end) {
  ByFunction(a.function, [&](auto function) HWY_ATTR {
    ActivateBackwardRange<decltype(function)>(a, begin, end);
  });
}

}  // namespace tercio::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tercio::kernels {

HWY_EXPORT(ActivateRows);
HWY_EXPORT(ActivateBackwardElements);

void ActivateCpu(const ActivationArgs& args, ThreadPool& pool) {
  OverRows(args.rows, args.columns, pool, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(ActivateRows)(args, begin, end);
  });
}

void ActivateBackwardCpu(const ActivationBackwardArgs& args, ThreadPool& pool) {
  OverRows(args.rows, args.columns, pool, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(ActivateBackwardElements)(args, begin * args.columns, end * args.columns);
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
