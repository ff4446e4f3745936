// Rounding to a format (kernels/ops.h).
#include <algorithm>

#include "kernels/cpu/parts.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/rounding.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/rounding-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tercio::kernels::HWY_NAMESPACE {

// RoundRow is inlined, so dispatch needs a function of its own.
void RoundRange(float* x, int64_t count, Format format) { RoundRow(x, count, format); }

}  // namespace tercio::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tercio::kernels {

HWY_EXPORT(RoundRange);

void RoundCpu(float* x, int64_t count, Format format, ThreadPool& pool) {
  // Results in fp32 are not rounded, and this saves the pass over them.
  if (format == Format::kFloat32) return;
  OverRows(count, 1, pool, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(RoundRange)(x + begin, end - begin, format);
  });
}

void RoundRowsCpu(const RoundRowsArgs& args, ThreadPool& pool) {
  float* const x = args.x;
  const Format format = args.x.format();
  if (format == Format::kFloat32) return;
  OverRows(args.rows, args.columns, pool, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      // The columns between these and the next row belong to another tensor.
      HWY_DYNAMIC_DISPATCH(RoundRange)(x + i * args.stride, args.columns, format);
    }
  });
}

}  // namespace tercio::kernels
#endif
