// Columns of wider rows: element-wise, so that nothing depends on how rows are split.
#include <algorithm>

#include "kernels/cpu/parts.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/columns.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/rounding-inl.h"
#include "kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tercio::kernels::HWY_NAMESPACE {

inline constexpr int64_t kColumnsChunk = 256;  // of multipliers, which stay in the nearest cache

void ColumnsRows(const ColumnsArgs& a, int64_t begin, int64_t end) {
  HWY_ALIGN float multiplier[kColumnsChunk];
  const bool dropping = a.dropout.probability > 0;
  const bool multiplies = a.times != nullptr;
  const Dropout& p = a.dropout;
  const Vector factor = hn::Set(Tag(), a.factor);
  for (int64_t i = begin; i < end; ++i) {
    float* const row = a.to + i * a.to_stride;
    for (int64_t c = 0; c < a.columns; c += kColumnsChunk) {
      const int64_t count = std::min(kColumnsChunk, a.columns - c);
      const float* from = a.from + i * a.from_stride + c;
      const float* times = multiplies ? a.times + i * a.times_stride + c : nullptr;
      float* to = row + c;
      if (dropping) {
        DropoutMultipliers(
            p,
            {.row_word = static_cast<uint32_t>((p.first_row + i) % p.tokens),
             .sequence = static_cast<uint32_t>(p.first_sequence + (p.first_row + i) / p.tokens),
             .tag = p.site | p.layer << 4,
             .begin = a.first_channel + c,
             .count = count},
            multiplier);
      }
      ForVectors(count, [&](auto load, auto store) HWY_ATTR {
        Vector value = hn::Mul(load(from), factor);
        if (multiplies) value = hn::Mul(value, load(times));
        if (dropping) value = hn::Mul(value, load(multiplier));
        if (a.accumulate) value = hn::Add(load(to), value);
        store(value, to);
      });
    }
    RoundRow(row, a.columns, a.to.format());
  }
}

}  // namespace tercio::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tercio::kernels {

HWY_EXPORT(ColumnsRows);

void ColumnsCpu(const ColumnsArgs& args, ThreadPool& pool) {
  OverRows(args.rows, args.columns, pool, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(ColumnsRows)(args, begin, end);
  });
}

}  // namespace tercio::kernels
#endif
