// LayerNorm, norms of heads, residual additions with dropout, and the column sums of their
// gradients.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/parts.h"
#include "kernels/random.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/norm.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/rounding-inl.h"
#include "kernels/cpu/vector-inl.h"

#ifndef TERCIO_KERNELS_CPU_NORM_ONCE
#define TERCIO_KERNELS_CPU_NORM_ONCE
namespace tercio::kernels {
// Channels whose dropout multipliers are made at a time; a multiple of 4 and of every vector.
inline constexpr int64_t kDropoutChunk = 256;
// Columns that one work item of a column sum owns.
inline constexpr int64_t kColumnChunk = 64;
// Heads have fewer channels than rows: a line of the cache.
inline constexpr int64_t kHeadChunk = 16;
}  // namespace tercio::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace tercio::kernels::HWY_NAMESPACE {

// What a norm multiplies with. Without an offset the weight keeps its bits.
HWY_INLINE Vector Factor(Vector weight, bool unit_offset) {
  return unit_offset ? hn::Add(weight, hn::Set(Tag(), 1.0f)) : weight;
}

// y = (x - mean) * rstd * weight + bias for one row; mean and variance in two passes of fixed
// order.
void NormRow(const LayerNormArgs& a, const float* x, float* y, float* mean_out, float* rstd_out) {
  const Tag d;
  const float mean =
      // RMSNorm is the same formula with a mean of zero.
      a.rms ? 0.0f : SumRow(a.columns, [&](auto load) HWY_ATTR { return load(x); }) / a.columns;
  const Vector m = hn::Set(d, mean);
  // The second pass avoids the cancellation of E[x^2] - E[x]^2.
  const float variance = SumRow(a.columns,
                                [&](auto load) HWY_ATTR {
                                  const Vector t = hn::Sub(load(x), m);
                                  return hn::Mul(t, t);
                                }) /
                         a.columns;
  const float rstd = 1.0f / std::sqrt(variance + a.eps);
  const Vector r = hn::Set(d, rstd);
  const float* weight = a.weight;
  const float* bias = a.bias;
  *mean_out = mean;
  *rstd_out = rstd;
  ForVectors(a.columns, [&](auto load, auto store) HWY_ATTR {
    const Vector n = hn::Mul(hn::Mul(hn::Sub(load(x), m), r), Factor(load(weight), a.unit_offset));
    store(bias == nullptr ? n : hn::Add(n, load(bias)), y);
  });
  RoundRow(y, a.columns, a.y.format());
}

void LayerNormRows(const LayerNormArgs& a, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    NormRow(a, a.x + i * a.columns, a.y + i * a.columns, a.mean + i, a.rstd + i);
  }
}

void HeadNormRows(const HeadNormArgs& a, int64_t begin, int64_t end) {
  const LayerNormArgs norm{.x = nullptr,
                           .weight = a.weight,
                           .bias = nullptr,
                           .y = a.y,
                           .mean = nullptr,
                           .rstd = nullptr,
                           .rows = 1,
                           .columns = a.head_dim,
                           .eps = a.eps,
                           .rms = true};
  for (int64_t i = begin; i < end; ++i) {
    for (int64_t head = 0; head < a.heads; ++head) {
      const int64_t at = i * a.stride + head * a.head_dim;
      float mean = 0;
      NormRow(norm, a.x + at, a.y + at, &mean, a.rstd + i * a.heads + head);
    }
  }
}

// One row of a gradient, or one head of it.
struct RowGradient {
  const float* dy;
  const float* x;
  const float* weight;
  float* dx;
  float mean, rstd;
};

// With h = dy * weight, n = (x - mean) * rstd:  dx = rstd * (h - mean(h) - n * mean(h * n));
// without mean(h) if the mean is not part of the norm.
void NormBackwardRow(const LayerNormBackwardArgs& a, const RowGradient& row) {
  const Tag d;
  const Vector mean = hn::Set(d, row.mean);
  const Vector rstd = hn::Set(d, row.rstd);
  // RMSNorm subtracts no mean, so its gradient has no such term.
  const float sum_h = a.rms ? 0.0f : SumRow(a.columns, [&](auto load) HWY_ATTR {
    return hn::Mul(load(row.dy), Factor(load(row.weight), a.unit_offset));
  });
  const float sum_hn = SumRow(a.columns, [&](auto load) HWY_ATTR {
    const Vector n = hn::Mul(hn::Sub(load(row.x), mean), rstd);
    return hn::Mul(hn::Mul(load(row.dy), Factor(load(row.weight), a.unit_offset)), n);
  });
  const Vector mean_h = hn::Set(d, sum_h / a.columns);
  const Vector mean_hn = hn::Set(d, sum_hn / a.columns);
  ForVectors(a.columns, [&](auto load, auto store) HWY_ATTR {
    const Vector n = hn::Mul(hn::Sub(load(row.x), mean), rstd);
    const Vector h = hn::Mul(load(row.dy), Factor(load(row.weight), a.unit_offset));
    const Vector g = hn::Mul(rstd, hn::NegMulAdd(n, mean_hn, hn::Sub(h, mean_h)));
    // With accumulate the gradient of another path is there already.
    store(a.accumulate ? hn::Add(load(row.dx), g) : g, row.dx);
  });
}

void LayerNormBackwardRows(const LayerNormBackwardArgs& a, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    const int64_t at = i * a.columns;
    NormBackwardRow(a, {.dy = a.dy + at,
                        .x = a.x + at,
                        .weight = a.weight,
                        .dx = a.dx + at,
                        .mean = a.mean[i],
                        .rstd = a.rstd[i]});
  }
}

void HeadNormBackwardRows(const HeadNormBackwardArgs& a, int64_t begin, int64_t end) {
  LayerNormBackwardArgs norm{};
  norm.columns = a.head_dim;
  norm.rms = true;
  for (int64_t i = begin; i < end; ++i) {
    for (int64_t head = 0; head < a.heads; ++head) {
      const int64_t at = i * a.stride + head * a.head_dim;
      NormBackwardRow(norm, {.dy = a.dy + at,
                             .x = a.x + at,
                             .weight = a.weight,
                             .dx = a.dx + at,
                             .mean = 0,
                             .rstd = a.rstd[i * a.heads + head]});
    }
  }
}

// dweight for channels [begin, end) of a head: leaf sums over the rows, and over the heads of each.
void HeadNormBackwardColumns(const HeadNormBackwardArgs& a, int64_t begin, int64_t end) {
  const Tag d;
  const int64_t count = end - begin;
  HWY_ALIGN float sum[kHeadChunk];
  for (int64_t row = 0; row < a.rows;) {
    const int64_t leaf_end = std::min(a.rows, (row / a.rows_per_leaf + 1) * a.rows_per_leaf);
    const int64_t piece_end = std::min(leaf_end, row + kPieceRows);
    std::fill_n(sum, count, 0.0f);
    for (; row < piece_end; ++row) {
      for (int64_t head = 0; head < a.heads; ++head) {
        const int64_t at = row * a.stride + head * a.head_dim + begin;
        const float* dy = a.dy + at;
        const float* x = a.x + at;
        const Vector rstd = hn::Set(d, a.rstd[row * a.heads + head]);
        ForVectors(count, [&](auto load, auto store) HWY_ATTR {
          store(hn::MulAdd(load(dy), hn::Mul(load(x), rstd), load(sum)), sum);
        });
      }
    }
    for (int64_t c = 0; c < count; ++c) a.dweight[begin + c] += sum[c];
  }
}

// dweight, dbias for columns [begin, end): leaf sums over the rows.
void LayerNormBackwardColumns(const LayerNormBackwardArgs& a, int64_t begin, int64_t end) {
  const Tag d;
  const int64_t count = end - begin;
  HWY_ALIGN float weight_sum[kColumnChunk];
  HWY_ALIGN float bias_sum[kColumnChunk];
  for (int64_t row = 0; row < a.rows;) {
    // The sums of leaves are those of a rank that has only their rows.
    const int64_t leaf_end = std::min(a.rows, (row / a.rows_per_leaf + 1) * a.rows_per_leaf);
    // A piece bounds the length of a chain of additions, and with it the rounding error.
    const int64_t piece_end = std::min(leaf_end, row + kPieceRows);
    std::fill_n(weight_sum, count, 0.0f);
    std::fill_n(bias_sum, count, 0.0f);
    for (; row < piece_end; ++row) {
      const float* dy = a.dy + row * a.columns + begin;
      const float* x = a.x + row * a.columns + begin;
      const Vector mean = hn::Set(d, a.mean[row]);
      const Vector rstd = hn::Set(d, a.rstd[row]);
      ForVectors(count, [&](auto load, auto store) HWY_ATTR {
        const Vector n = hn::Mul(hn::Sub(load(x), mean), rstd);
        store(hn::MulAdd(load(dy), n, load(weight_sum)), weight_sum);
        store(hn::Add(load(bias_sum), load(dy)), bias_sum);
      });
    }
    // The pieces are added in the order of the rows, on whichever thread.
    if (a.dweight != nullptr) {
      for (int64_t c = 0; c < count; ++c) a.dweight[begin + c] += weight_sum[c];
    }
    if (a.dbias == nullptr) continue;
    for (int64_t c = 0; c < count; ++c) a.dbias[begin + c] += bias_sum[c];
  }
}

void ColumnSums(const ColumnSumsArgs& a, int64_t begin, int64_t end) {
  const int64_t count = end - begin;
  HWY_ALIGN float sum[kColumnChunk];
  for (int64_t row = 0; row < a.rows;) {
    const int64_t leaf_end = std::min(a.rows, (row / a.rows_per_leaf + 1) * a.rows_per_leaf);
    const int64_t piece_end = std::min(leaf_end, row + kPieceRows);
    std::fill_n(sum, count, 0.0f);
    for (; row < piece_end; ++row) {
      const float* v = a.value + row * a.columns + begin;
      ForVectors(count,
                 [&](auto load, auto store) HWY_ATTR { store(hn::Add(load(sum), load(v)), sum); });
    }
    for (int64_t c = 0; c < count; ++c) a.out[begin + c] += sum[c];
  }
}

void ResidualRows(const ResidualArgs& a, const LayerNormArgs* norm, int64_t begin, int64_t end) {
  HWY_ALIGN float multiplier[kDropoutChunk];
  const bool dropping = a.dropout.probability > 0;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t row = i * a.columns;
    for (int64_t c = 0; c < a.columns; c += kDropoutChunk) {
      // The multipliers of a chunk stay in the nearest cache.
      const int64_t count = std::min(kDropoutChunk, a.columns - c);
      const float* branch = a.branch + row + c;
      const float* residual = a.residual + row + c;
      const float* bias = a.bias == nullptr ? nullptr : a.bias + c;
      float* out = a.out + row + c;
      if (dropping) {
        const Dropout& p = a.dropout;
        DropoutMultipliers(
            p,
            // The counter is the place in the global batch, so that masks do not depend on the
            // layout.
            {.row_word = static_cast<uint32_t>((p.first_row + i) % p.tokens),
             .sequence = static_cast<uint32_t>(p.first_sequence + (p.first_row + i) / p.tokens),
             .tag = p.site | p.layer << 4,
             .begin = c,
             .count = count},
            multiplier);
      }
      ForVectors(count, [&](auto load, auto store) HWY_ATTR {
        // The order of bias, dropout and residual is that of the contract, and of the gradients.
        Vector b = load(branch);
        if (bias != nullptr) b = hn::Add(b, load(bias));
        if (dropping) b = hn::Mul(b, load(multiplier));
        store(hn::Add(load(residual), b), out);
      });
    }
    RoundRow(a.out + row, a.columns, a.out.format());
    if (norm != nullptr) {
      // The norm sees the rounded values, which are the ones that are stored and read backward.
      NormRow(*norm, a.out + row, norm->y + row, norm->mean + i, norm->rstd + i);
    }
  }
}

void ResidualBackwardRows(const ResidualBackwardArgs& a, int64_t begin, int64_t end) {
  HWY_ALIGN float multiplier[kDropoutChunk];
  const Dropout& p = a.dropout;
  for (int64_t i = begin; i < end; ++i) {
    for (int64_t c = 0; c < a.columns; c += kDropoutChunk) {
      const int64_t count = std::min(kDropoutChunk, a.columns - c);
      const float* from = a.dout + i * a.columns + c;
      float* to = a.dbranch + i * a.columns + c;
      DropoutMultipliers(
          p,
          {.row_word = static_cast<uint32_t>((p.first_row + i) % p.tokens),
           .sequence = static_cast<uint32_t>(p.first_sequence + (p.first_row + i) / p.tokens),
           .tag = p.site | p.layer << 4,
           .begin = c,
           .count = count},
          multiplier);
      ForVectors(count, [&](auto load, auto store)
                            HWY_ATTR { store(hn::Mul(load(from), load(multiplier)), to); });
    }
  }
}

}  // namespace tercio::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tercio::kernels {

HWY_EXPORT(LayerNormRows);
HWY_EXPORT(HeadNormRows);
HWY_EXPORT(HeadNormBackwardRows);
HWY_EXPORT(HeadNormBackwardColumns);
HWY_EXPORT(LayerNormBackwardRows);
HWY_EXPORT(LayerNormBackwardColumns);
HWY_EXPORT(ColumnSums);
HWY_EXPORT(ResidualRows);
HWY_EXPORT(ResidualBackwardRows);

namespace {

// A chunk of columns belongs to one thread, so that each element is summed in the order of rows.
template <typename Body>
void OverColumns(int64_t columns, ThreadPool& pool, const Body& body) {
  pool.ParallelFor((columns + kColumnChunk - 1) / kColumnChunk, [&](int64_t chunk, int) {
    body(chunk * kColumnChunk, std::min(columns, (chunk + 1) * kColumnChunk));
  });
}

}  // namespace

void DropoutMultipliers(const Dropout& dropout, const DropoutSpan& span, float* out) {
  const PhiloxKey key = MakeKey(dropout.seed, dropout.step);
  const uint32_t threshold = DropThreshold(dropout.probability);
  const float scale = 1.0f / (1.0f - dropout.probability);
  for (int64_t c = 0; c < span.count; c += 4) {
    // Four neighbouring channels share the four words of one block.
    const PhiloxBlock bits = Philox(
        key, {static_cast<uint32_t>((span.begin + c) / 4), span.row_word, span.sequence, span.tag});
    const int64_t n = std::min<int64_t>(4, span.count - c);
    for (int64_t i = 0; i < n; ++i) out[c + i] = bits[i] >= threshold ? scale : 0.0f;
  }
}

void LayerNormCpu(const LayerNormArgs& args, ThreadPool& pool) {
  // Rows are independent, so their division among threads changes no bit.
  OverRows(args.rows, args.columns, pool, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(LayerNormRows)(args, begin, end);
  });
}

void LayerNormBackwardCpu(const LayerNormBackwardArgs& args, ThreadPool& pool) {
  // The column sums read dy and x, which dx may overwrite when it aliases neither: they come first.
  if (args.dweight != nullptr || args.dbias != nullptr) {
    OverColumns(args.columns, pool, [&](int64_t begin, int64_t end) {
      HWY_DYNAMIC_DISPATCH(LayerNormBackwardColumns)(args, begin, end);
    });
  }
  OverRows(args.rows, args.columns, pool, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(LayerNormBackwardRows)(args, begin, end);
  });
}

void HeadNormCpu(const HeadNormArgs& args, ThreadPool& pool) {
  OverRows(args.rows, args.heads * args.head_dim, pool, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(HeadNormRows)(args, begin, end);
  });
}

void HeadNormBackwardCpu(const HeadNormBackwardArgs& args, ThreadPool& pool) {
  // The sums read dy, which dx may be: they come first.
  const int64_t chunks =
      args.dweight == nullptr ? 0 : (args.head_dim + kHeadChunk - 1) / kHeadChunk;
  pool.ParallelFor(chunks, [&](int64_t chunk, int) {
    HWY_DYNAMIC_DISPATCH(HeadNormBackwardColumns)
    (args, chunk * kHeadChunk, std::min(args.head_dim, (chunk + 1) * kHeadChunk));
  });
  OverRows(args.rows, args.heads * args.head_dim, pool, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(HeadNormBackwardRows)(args, begin, end);
  });
}

void ColumnLeafSums(const ColumnSumsArgs& args, ThreadPool& pool) {
  OverColumns(args.columns, pool, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(ColumnSums)(args, begin, end);
  });
}

void ResidualCpu(const ResidualArgs& args, const LayerNormArgs* norm, ThreadPool& pool) {
  OverRows(args.rows, args.columns, pool, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(ResidualRows)(args, norm, begin, end);
  });
}

void ResidualBackwardCpu(const ResidualBackwardArgs& args, ThreadPool& pool) {
  const float* gradient = args.dout;
  if (args.dropout.probability > 0) {
    OverRows(args.rows, args.columns, pool, [&](int64_t begin, int64_t end) {
      HWY_DYNAMIC_DISPATCH(ResidualBackwardRows)(args, begin, end);
    });
    // The bias lies before the dropout, so its gradient is the sum behind it.
    gradient = args.dbranch;
  }
  if (args.dbias == nullptr) return;
  ColumnLeafSums({.value = gradient,
                  .out = args.dbias,
                  .rows = args.rows,
                  .columns = args.columns,
                  .rows_per_leaf = args.rows_per_leaf},
                 pool);
}

}  // namespace tercio::kernels
#endif
