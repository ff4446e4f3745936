// Gated activations: element-wise, so that nothing depends on how rows are
// split.
#include <algorithm>

#include "kernels/cpu/parts.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/gated.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/activation-inl.h"
#include "kernels/cpu/rounding-inl.h"
#include "kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tercio::kernels::HWY_NAMESPACE {

template <typename Function>
HWY_INLINE void GatedRange(const GatedArgs& a, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    // One product makes gate and up, which therefore lie side by side in a row.
    const float* gate = a.h + i * 2 * a.columns;
    const float* up = gate + a.columns;
    float* g = a.g + i * a.columns;
    ForVectors(a.columns, [&](auto load, auto store) HWY_ATTR {
      store(hn::Mul(Function::Value(load(gate)), load(up)), g);
    });
    // The row is rounded while it is still in the cache.
    RoundRow(g, a.columns, a.g.format());
  }
}

template <typename Function>
HWY_INLINE void GatedBackwardRange(const GatedBackwardArgs& a, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    const float* gate = a.h + i * 2 * a.columns;
    const float* up = gate + a.columns;
    const float* dg = a.dg + i * a.columns;
    float* dgate = a.dh + i * 2 * a.columns;
    float* dup = dgate + a.columns;
    ForVectors(a.columns, [&](auto load, auto store) HWY_ATTR {
      // The function is computed again, which costs less than storing it between the passes.
      const Vector x = load(gate);
      const Vector g = load(dg);
      store(hn::Mul(hn::Mul(g, load(up)), Function::Slope(x)), dgate);
      store(hn::Mul(g, Function::Value(x)), dup);
    });
  }
}

void GatedRows(const GatedArgs& a, int64_t begin, int64_t end) {
  ByFunction(a.function,
             [&](auto function) HWY_ATTR { GatedRange<decltype(function)>(a, begin, end); });
}

void GatedBackwardRows(const GatedBackwardArgs& a, int64_t begin, int64_t end) {
  ByFunction(a.function, [&](auto function)
                             HWY_ATTR { GatedBackwardRange<decltype(function)>(a, begin, end); });
}

}  // namespace tercio::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tercio::kernels {

HWY_EXPORT(GatedRows);
HWY_EXPORT(GatedBackwardRows);

void GatedCpu(const GatedArgs& args, ThreadPool& pool) {
  OverRows(args.rows, args.columns, pool, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(GatedRows)(args, begin, end);
  });
}

void GatedBackwardCpu(const GatedBackwardArgs& args, ThreadPool& pool) {
  OverRows(args.rows, args.columns, pool, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(GatedBackwardRows)(args, begin, end);
  });
}

}  // namespace tercio::kernels
#endif
