#include "kernels/cpu/gemm.h"

#include <algorithm>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/gemm.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/gemm-inl.h"
#include "kernels/ops.h"

#ifndef TERCIO_KERNELS_CPU_GEMM_ONCE
#define TERCIO_KERNELS_CPU_GEMM_ONCE
namespace tercio::kernels {
// Columns of B packed at once: 256 x 3072 floats = 3 MiB, a share of the last-level cache.
inline constexpr int64_t kColumnBlock = 3072;
// Rows of A per work item: 96 x 256 floats = 96 KiB, inside the second-level cache. A multiple of 6
// and 12.
inline constexpr int64_t kRowBlock = 96;
inline constexpr int64_t kMaxPanel = 32;
// Rows of A are packed where they are used for more columns than this; for fewer it costs too much.
inline constexpr int64_t kPackedColumns = 512;
// So few rows read every weight once or twice: packing would cost more than the product.
inline constexpr int64_t kFewRows = 2;
// Columns whose sums run side by side, to hide the latency of an FMA.
inline constexpr int64_t kChains = 8;
}  // namespace tercio::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace tercio::kernels::HWY_NAMESPACE {

// A block as strips of kTileRows rows: out[strip][k][row].
HWY_INLINE void PackA(const MatrixView& a, int64_t rows, int64_t depth, float* HWY_RESTRICT out) {
  for (int64_t i = 0; i < rows; i += kTileRows) {
    const int64_t strip_rows = std::min<int64_t>(kTileRows, rows - i);
    const float* from = a.data + i * a.row_stride;
    for (int64_t r = 0; r < strip_rows; ++r) {
      const float* row = from + r * a.row_stride;
      for (int64_t k = 0; k < depth; ++k) out[k * kTileRows + r] = row[k * a.column_stride];
    }
    out += depth * kTileRows;
  }
}

// As PackA for a transposed matrix (row_stride 1): neighbours in a strip are neighbours in memory.
HWY_INLINE void PackTransposedA(const MatrixView& a, int64_t rows, int64_t depth,
                                float* HWY_RESTRICT out) {
  for (int64_t i = 0; i < rows; i += kTileRows) {
    const int64_t strip_rows = std::min<int64_t>(kTileRows, rows - i);
    const float* from = a.data + i;
    if (strip_rows == kTileRows) {
      for (int64_t k = 0; k < depth; ++k) {
        std::memcpy(out + k * kTileRows, from + k * a.column_stride, kTileRows * sizeof(float));
      }
    } else {
      for (int64_t k = 0; k < depth; ++k) {
        for (int64_t r = 0; r < strip_rows; ++r) {
          out[k * kTileRows + r] = from[k * a.column_stride + r];
        }
      }
    }
    out += depth * kTileRows;
  }
}

struct Block {
  int64_t row, rows;        // of C
  int64_t column, columns;  // of C
  int64_t depth;
  const float* packed_b;  // panels of the columns of the block
  Store store;
  bool last;  // add the bias
};

void ComputeBlock(const GemmArgs& args, const MatrixView& a, const Block& block, float* a_scratch) {
  const int64_t width = PanelColumns();
  // Strip i of the block starts at strips + i * strip_stride.
  const float* strips = a_scratch;
  int64_t strip_stride = block.depth;
  int64_t row_stride = 1;
  int64_t column_stride = kTileRows;
  if (a.row_stride == 1) {
    PackTransposedA(a, block.rows, block.depth, a_scratch);
  } else if (block.columns > kPackedColumns) {
    PackA(a, block.rows, block.depth, a_scratch);
  } else {
    strips = a.data;
    strip_stride = row_stride = a.row_stride;
    column_stride = a.column_stride;
  }
  for (int64_t j = 0; j < block.columns; j += width) {
    const float* panel = block.packed_b + j * block.depth;
    for (int64_t i = 0; i < block.rows; i += kTileRows) {
      float* c = args.c + (block.row + i) * args.n + block.column + j;
      TileOfRows<kTileRows>(std::min<int64_t>(kTileRows, block.rows - i), strips + i * strip_stride,
                            row_stride, column_stride, panel, block.depth, c, args.n,
                            std::min(width, block.columns - j), block.store);
    }
  }
  if (!block.last || args.bias == nullptr) return;
  for (int64_t i = 0; i < block.rows; ++i) {
    float* c = args.c + (block.row + i) * args.n + block.column;
    for (int64_t j = 0; j < block.columns; ++j) c[j] += args.bias[block.column + j];
  }
}

// Columns per work item, so that there are several items per thread, in whole panels.
int64_t ItemColumns(int64_t rows, int64_t columns, int threads) {
  const int64_t width = PanelColumns();
  const int64_t row_items = (rows + kRowBlock - 1) / kRowBlock;
  const int64_t wanted = threads == 1 ? 1 : std::max<int64_t>(1, 4 * threads / row_items);
  const int64_t panels = (columns + width - 1) / width;
  return (panels + wanted - 1) / wanted * width;
}

// Pieces of k that are packed and worked on together: each has a sum of its own, so that short
// leaves cost no more synchronisation than long ones.
struct Group {
  static constexpr int kMost = 32;
  int64_t begin[kMost + 1];  // of piece i; begin[count] is the end
  int count = 0;
};

Group GroupAt(const GemmArgs& args, int64_t k) {
  Group group;
  group.begin[0] = k;
  int64_t at = k;
  while (at < args.k && group.count < Group::kMost) {
    const int64_t leaf_end = std::min(args.k, (at / args.leaf + 1) * args.leaf);
    const int64_t depth = std::min(kPieceRows, leaf_end - at);
    if (at + depth - k > kPieceRows) break;
    at += depth;
    group.begin[++group.count] = at;
  }
  return group;
}

// Columns [column, column + columns) of C.
void GemmColumns(const GemmArgs& args, int64_t column, int64_t columns, ThreadPool& pool,
                 float* packed_b, float* a_scratch) {
  const int64_t width = PanelColumns();
  const int64_t panels = (columns + width - 1) / width;
  const int64_t panels_per_item = std::max<int64_t>(1, panels / (4 * pool.threads()));
  const int64_t row_items = (args.m + kRowBlock - 1) / kRowBlock;
  const int64_t item_columns = ItemColumns(args.m, columns, pool.threads());
  const int64_t column_items = (columns + item_columns - 1) / item_columns;
  for (int64_t k = 0; k < args.k;) {
    const Group group = GroupAt(args, k);
    const auto packed = [&](int piece) {
      return packed_b + (group.begin[piece] - k) * panels * width;
    };
    pool.ParallelFor((panels + panels_per_item - 1) / panels_per_item, [&](int64_t item, int) {
      const int64_t begin = item * panels_per_item * width;
      const int64_t end = std::min(columns, begin + panels_per_item * width);
      for (int i = 0; i < group.count; ++i) {
        const int64_t depth = group.begin[i + 1] - group.begin[i];
        const MatrixView part{
            args.b + group.begin[i] * args.b_row_stride + (column + begin) * args.b_column_stride,
            args.b_row_stride, args.b_column_stride};
        PackB(part, depth, end - begin, packed(i) + begin * depth);
      }
    });
    pool.ParallelFor(row_items * column_items, [&](int64_t item, int thread) {
      const int64_t row = item / column_items * kRowBlock;
      const int64_t item_column = item % column_items * item_columns;
      Block block;
      block.row = row;
      block.rows = std::min(kRowBlock, args.m - row);
      block.column = column + item_column;
      block.columns = std::min(item_columns, columns - item_column);
      for (int i = 0; i < group.count; ++i) {
        block.depth = group.begin[i + 1] - group.begin[i];
        block.packed_b = packed(i) + item_column * block.depth;
        block.store = group.begin[i] == 0 && !args.accumulate ? Store::kAssign : Store::kAdd;
        block.last = group.begin[i + 1] == args.k;
        const MatrixView a{args.a + row * args.a_row_stride + group.begin[i] * args.a_column_stride,
                           args.a_row_stride, args.a_column_stride};
        ComputeBlock(args, a, block, a_scratch + thread * kRowBlock * kPieceRows);
      }
    });
    k = group.begin[group.count];
  }
}

// One row of A times kChains columns of B that are each contiguous in k; the sums are those of the
// tiles: one chain of FMAs for each piece of k.
void RowChains(const GemmArgs& args, const float* a, const float* b, float* c) {
  for (int64_t begin = 0; begin < args.k; begin += kPieceRows) {
    const int64_t end = std::min(args.k, begin + kPieceRows);
    float sums[kChains] = {};
    for (int64_t k = begin; k < end; ++k) {
      for (int64_t j = 0; j < kChains; ++j) {
        sums[j] = __builtin_fmaf(a[k], b[j * args.b_column_stride + k], sums[j]);
      }
    }
    const bool assign = begin == 0 && !args.accumulate;
    for (int64_t j = 0; j < kChains; ++j) c[j] = assign ? sums[j] : c[j] + sums[j];
  }
}

// Columns [begin, end) of a product with few rows.
void FewRowsColumns(const GemmArgs& args, int64_t begin, int64_t end) {
  for (int64_t column = begin; column < end; column += kChains) {
    // At the end some columns are computed again, and left alone, rather than by code of their own.
    const int64_t first = std::min(column, args.n - kChains);
    for (int64_t row = 0; row < args.m; ++row) {
      const float* a = args.a + row * args.a_row_stride;
      float* c = args.c + row * args.n;
      float sums[kChains] = {};
      if (args.accumulate) std::copy(c + column, c + first + kChains, sums + (column - first));
      RowChains(args, a, args.b + first * args.b_column_stride, sums);
      for (int64_t j = column; j < std::min(end, column + kChains); ++j) {
        c[j] = sums[j - first] + (args.bias == nullptr ? 0.0f : args.bias[j]);
      }
    }
  }
}

bool HasFewRows(const GemmArgs& args) {
  return args.m <= kFewRows && args.n >= kChains && args.b_row_stride == 1 &&
         args.a_column_stride == 1 && args.leaf >= args.k;
}

void GemmTarget(const GemmArgs& args, ThreadPool& pool, float* scratch) {
  if (HasFewRows(args)) {
    const int64_t wanted = (args.n + 4 * pool.threads() - 1) / (4 * pool.threads());
    const int64_t columns = (wanted + kChains - 1) / kChains * kChains;
    return pool.ParallelFor((args.n + columns - 1) / columns, [&](int64_t item, int) {
      FewRowsColumns(args, item * columns, std::min(args.n, (item + 1) * columns));
    });
  }
  float* a_scratch = scratch + kPieceRows * (kColumnBlock + kMaxPanel);
  for (int64_t column = 0; column < args.n; column += kColumnBlock) {
    GemmColumns(args, column, std::min(kColumnBlock, args.n - column), pool, scratch, a_scratch);
  }
}

}  // namespace tercio::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tercio::kernels {

HWY_EXPORT(GemmTarget);

int64_t GemmScratch(int threads) {
  return kPieceRows * (kColumnBlock + kMaxPanel) + threads * kRowBlock * kPieceRows;
}

void Gemm(const GemmArgs& args, ThreadPool& pool, float* scratch) {
  HWY_DYNAMIC_DISPATCH(GemmTarget)(args, pool, scratch);
}

}  // namespace tercio::kernels
#endif
