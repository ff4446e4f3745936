// The product of matrices for one instruction set; included once per Highway target.
//
// Every element of C is, whatever the tile it falls in:
//   for each block of k, in order:  acc = 0; for k ascending: acc = fma(a, b, acc);  c = c + acc
// B is packed into panels of kPanelVectors vectors of columns, zero-padded; A is read in place or
// packed.
#if defined(TERCIO_KERNELS_CPU_GEMM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERCIO_KERNELS_CPU_GEMM_INL_H_
#undef TERCIO_KERNELS_CPU_GEMM_INL_H_
#else
#define TERCIO_KERNELS_CPU_GEMM_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tercio::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// A (M,K): element (m,k) at data[m * row_stride + k * column_stride]. Likewise B (K,N).
struct MatrixView {
  const float* data;
  int64_t row_stride;
  int64_t column_stride;
};

using GemmTag = hn::CappedTag<float, 16>;
using GemmVector = hn::Vec<GemmTag>;

// 2 vectors wide; as many rows as leave registers for the operands (16 or 32 registers).
HWY_INLINE int64_t PanelColumns() { return 2 * static_cast<int64_t>(hn::Lanes(GemmTag())); }
#if HWY_TARGET <= HWY_AVX3
inline constexpr int kTileRows = 12;
#else
inline constexpr int kTileRows = 6;
#endif

enum class Store { kAssign, kAdd };

// c = or += the sums of a tile.
template <int Rows>
HWY_INLINE void StoreTile(GemmVector (&acc0)[Rows], GemmVector (&acc1)[Rows], float* HWY_RESTRICT c,
                          int64_t c_stride, int64_t columns, Store store) {
  const GemmTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  if (HWY_LIKELY(columns == 2 * lanes)) {
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
      float* row = c + r * c_stride;
      if (store == Store::kAdd) {
        acc0[r] = hn::Add(hn::LoadU(d, row), acc0[r]);
        acc1[r] = hn::Add(hn::LoadU(d, row + lanes), acc1[r]);
      }
      hn::StoreU(acc0[r], d, row);
      hn::StoreU(acc1[r], d, row + lanes);
    }
    return;
  }
  HWY_ALIGN float part[32] = {};
#pragma GCC unroll 16
  for (int r = 0; r < Rows; ++r) {
    hn::Store(acc0[r], d, part);
    hn::Store(acc1[r], d, part + lanes);
    float* row = c + r * c_stride;
    for (int64_t j = 0; j < columns; ++j)
      row[j] = store == Store::kAdd ? row[j] + part[j] : part[j];
  }
}

// acc[r] = fma(a[r * row_stride + k * column_stride], panel[k * PanelColumns() + c], acc[r]) for k
// ascending; each_time() before each of them.
template <int Rows, typename EachTime>
HWY_INLINE void Accumulate(GemmVector (&acc0)[Rows], GemmVector (&acc1)[Rows],
                           const float* HWY_RESTRICT a, int64_t row_stride, int64_t column_stride,
                           const float* HWY_RESTRICT panel, int64_t depth,
                           const EachTime& each_time) {
  const GemmTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t k = 0; k < depth; ++k) {
    each_time();
    const GemmVector b0 = hn::Load(d, panel);
    const GemmVector b1 = hn::Load(d, panel + lanes);
    panel += 2 * lanes;
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
      const GemmVector x = hn::Set(d, a[r * row_stride]);
      acc0[r] = hn::MulAdd(x, b0, acc0[r]);
      acc1[r] = hn::MulAdd(x, b1, acc1[r]);
    }
    a += column_stride;
  }
}

// One tile of `Rows` x one panel. a[r * row_stride + k * column_stride], panel[k * PanelColumns() +
// c].
template <int Rows>
HWY_INLINE void Tile(const float* HWY_RESTRICT a, int64_t row_stride, int64_t column_stride,
                     const float* HWY_RESTRICT panel, int64_t depth, float* HWY_RESTRICT c,
                     int64_t c_stride, int64_t columns, Store store) {
  const GemmTag d;
  GemmVector acc0[Rows];
  GemmVector acc1[Rows];
#pragma GCC unroll 16
  for (int r = 0; r < Rows; ++r) {
    acc0[r] = hn::Zero(d);
    acc1[r] = hn::Zero(d);
  }
  // C is far away where the product is large. Its lines are asked for again and again, since the
  // operands that stream by would evict from the first-level cache what was asked for only once.
  const float* line = c;
  const float* const end = c + Rows * c_stride;
  int64_t column = 0;
  Accumulate<Rows>(acc0, acc1, a, row_stride, column_stride, panel, depth, [&]() HWY_ATTR {
    hwy::Prefetch(line + column);
    line += c_stride;
    if (line == end) {
      line = c;
      column ^= columns - 1;
    }
  });
  StoreTile<Rows>(acc0, acc1, c, c_stride, columns, store);
}

// Continues the sums of a tile, `Rows` x PanelColumns() side by side, with a part of a panel.
template <int Rows>
HWY_INLINE void ContinueTile(const float* HWY_RESTRICT a, int64_t row_stride, int64_t column_stride,
                             const float* HWY_RESTRICT panel, int64_t depth,
                             float* HWY_RESTRICT sums) {
  const GemmTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  GemmVector acc0[Rows];
  GemmVector acc1[Rows];
#pragma GCC unroll 16
  for (int r = 0; r < Rows; ++r) {
    acc0[r] = hn::Load(d, sums + 2 * r * lanes);
    acc1[r] = hn::Load(d, sums + (2 * r + 1) * lanes);
  }
  Accumulate<Rows>(acc0, acc1, a, row_stride, column_stride, panel, depth, [] {});
#pragma GCC unroll 16
  for (int r = 0; r < Rows; ++r) {
    hn::Store(acc0[r], d, sums + 2 * r * lanes);
    hn::Store(acc1[r], d, sums + (2 * r + 1) * lanes);
  }
}

template <int Rows>
HWY_NOINLINE void ContinueTileOfRows(int64_t rows, const float* a, int64_t row_stride,
                                     int64_t column_stride, const float* panel, int64_t depth,
                                     float* sums) {
  if (rows == Rows) {
    ContinueTile<Rows>(a, row_stride, column_stride, panel, depth, sums);
  } else if constexpr (Rows > 1) {
    ContinueTileOfRows<Rows - 1>(rows, a, row_stride, column_stride, panel, depth, sums);
  }
}

template <int Rows>
HWY_NOINLINE void TileOfRows(int64_t rows, const float* a, int64_t row_stride,
                             int64_t column_stride, const float* panel, int64_t depth, float* c,
                             int64_t c_stride, int64_t columns, Store store) {
  if (rows == Rows && row_stride == 1 && column_stride == kTileRows) {
    // With constant strides the operands of packed strips are addressed without an index.
    Tile<Rows>(a, 1, kTileRows, panel, depth, c, c_stride, columns, store);
  } else if (rows == Rows) {
    Tile<Rows>(a, row_stride, column_stride, panel, depth, c, c_stride, columns, store);
  } else if constexpr (Rows > 1) {
    TileOfRows<Rows - 1>(rows, a, row_stride, column_stride, panel, depth, c, c_stride, columns,
                         store);
  }
}

// Floats that PackB writes.
HWY_INLINE int64_t PackedSize(int64_t depth, int64_t columns) {
  const int64_t width = PanelColumns();
  return (columns + width - 1) / width * width * depth;
}

// Four rows of four values: out[k * out_stride + r] = in[r * in_stride + k].
HWY_INLINE void TransposeSquare(const float* HWY_RESTRICT in, int64_t in_stride,
                                float* HWY_RESTRICT out, int64_t out_stride) {
#if HWY_TARGET == HWY_SCALAR
  for (int64_t k = 0; k < 4; ++k) {
    for (int64_t r = 0; r < 4; ++r) out[k * out_stride + r] = in[r * in_stride + k];
  }
#else
  const hn::FixedTag<float, 4> d;
  const auto row0 = hn::LoadU(d, in);
  const auto row1 = hn::LoadU(d, in + in_stride);
  const auto row2 = hn::LoadU(d, in + 2 * in_stride);
  const auto row3 = hn::LoadU(d, in + 3 * in_stride);
  const auto lower01 = hn::InterleaveLower(d, row0, row1);
  const auto lower23 = hn::InterleaveLower(d, row2, row3);
  const auto upper01 = hn::InterleaveUpper(d, row0, row1);
  const auto upper23 = hn::InterleaveUpper(d, row2, row3);
  hn::StoreU(hn::ConcatLowerLower(d, lower23, lower01), d, out);
  hn::StoreU(hn::ConcatUpperUpper(d, lower23, lower01), d, out + out_stride);
  hn::StoreU(hn::ConcatLowerLower(d, upper23, upper01), d, out + 2 * out_stride);
  hn::StoreU(hn::ConcatUpperUpper(d, upper23, upper01), d, out + 3 * out_stride);
#endif
}

// What packing asks for meanwhile, as the hardware does not foresee it: for every row and cache
// line of 16 elements of what is packed, one line.
struct Ahead {
  const float* begin;
  int64_t row_step, element_step;
};

// out[k * out_stride + r] = in[r * in_stride + k] for r < rows, k < depth.
HWY_INLINE void Transpose(const float* HWY_RESTRICT in, int64_t in_stride, int64_t rows,
                          int64_t depth, float* HWY_RESTRICT out, int64_t out_stride,
                          const Ahead& ahead) {
  if (rows < 4 || depth < 4) {
    for (int64_t k = 0; k < depth; ++k) {
      for (int64_t r = 0; r < rows; ++r) out[k * out_stride + r] = in[r * in_stride + k];
    }
    return;
  }
  // A cache line of every row at a time, whose writes stay inside the first-level cache.
  for (int64_t line = 0; line < depth; line += 16) {
    const int64_t line_end = std::min(depth, line + 16);
    for (int64_t r = 0; r < rows; r += 4) {
      // The last squares overlap those before them, rather than having code of their own.
      const int64_t row = std::min(r, rows - 4);
      for (int64_t i = row; i < row + 4; ++i) {
        hwy::Prefetch(ahead.begin + i * ahead.row_step + line * ahead.element_step);
      }
      for (int64_t k = line; k < line_end; k += 4) {
        const int64_t first = std::min(k, depth - 4);
        TransposeSquare(in + row * in_stride + first, in_stride, out + first * out_stride + row,
                        out_stride);
      }
    }
  }
}

// One panel: columns [0, columns) of b, depth rows. `out` is aligned to a vector.
HWY_INLINE void PackPanel(const MatrixView& b, int64_t depth, int64_t columns,
                          float* HWY_RESTRICT out, const Ahead& ahead) {
  const GemmTag d;
  const int64_t width = PanelColumns();
  const int64_t lanes = width / 2;
  if (b.column_stride == 1 && columns == width) {
    for (int64_t k = 0; k < depth; ++k) {
      const float* row = b.data + k * b.row_stride;
      hn::Store(hn::LoadU(d, row), d, out + k * width);
      hn::Store(hn::LoadU(d, row + lanes), d, out + k * width + lanes);
    }
    return;
  }
  if (b.row_stride == 1) {
    Transpose(b.data, b.column_stride, columns, depth, out, width, ahead);
  } else {
    for (int64_t k = 0; k < depth; ++k) {
      const float* row = b.data + k * b.row_stride;
      for (int64_t c = 0; c < columns; ++c) out[k * width + c] = row[c * b.column_stride];
    }
  }
  if (columns == width) return;
  for (int64_t k = 0; k < depth; ++k) {
    std::fill(out + k * width + columns, out + (k + 1) * width, 0.0f);
  }
}

HWY_INLINE void PackB(const MatrixView& b, int64_t depth, int64_t columns, float* out) {
  const int64_t width = PanelColumns();
  for (int64_t c = 0; c < columns; c += width) {
    const MatrixView part{.data = b.data + c * b.column_stride,
                          .row_stride = b.row_stride,
                          .column_stride = b.column_stride};
    PackPanel(part, depth, std::min(width, columns - c), out + c * depth,
              {.begin = part.data + width * b.column_stride,
               .row_step = b.column_stride,
               .element_step = 1});
  }
}

// c (rows x columns) from a (rows x depth, in place) and packed b; one block of k.
HWY_INLINE void MultiplyPacked(const MatrixView& a, const float* packed, int64_t rows,
                               int64_t columns, int64_t depth, float* c, int64_t c_stride,
                               Store store) {
  const int64_t width = PanelColumns();
  for (int64_t j = 0; j < columns; j += width) {
    for (int64_t i = 0; i < rows; i += kTileRows) {
      TileOfRows<kTileRows>(std::min<int64_t>(kTileRows, rows - i), a.data + i * a.row_stride,
                            a.row_stride, a.column_stride, packed + j * depth, depth,
                            c + i * c_stride + j, c_stride, std::min(width, columns - j), store);
    }
  }
}

}  // namespace tercio::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // TERCIO_KERNELS_CPU_GEMM_INL_H_
