#include "kernels/cpu/gemm.h"

#include <algorithm>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/gemm.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/flush_denormals.h"
#include "kernels/cpu/gemm-inl.h"
#include "kernels/cpu/gemm_pairs-inl.h"
#include "kernels/cpu/rounding-inl.h"
#include "kernels/cpu/vector-inl.h"
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
// Rows of a panel that few rows of A are multiplied with at a time: 64 x 32 floats = 8 KiB, a
// quarter of a first-level cache.
inline constexpr int64_t kFewRowsDepth = 64;
// Fewer columns than this are divided among threads only if rows cannot be.
inline constexpr int64_t kManyColumns = 256;
// Pieces of B that are packed together, beyond which they would leave the second-level cache:
// narrow products wait for all threads less often.
inline constexpr int64_t kGroupFloats = int64_t{128} << 10;
// Rows of A are packed if they are used for more columns than this; for fewer it costs too much.
inline constexpr int64_t kPackedColumns = 512;
}  // namespace tercio::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace tercio::kernels::HWY_NAMESPACE {

// A block as strips of kTileRows rows: out[strip][k][row].
HWY_INLINE void PackA(const MatrixView& a, int64_t rows, int64_t depth, float* HWY_RESTRICT out) {
  for (int64_t i = 0; i < rows; i += kTileRows) {
    const int64_t strip_rows = std::min<int64_t>(kTileRows, rows - i);
    const float* from = a.data + i * a.row_stride;
    if (a.column_stride == 1) {
      Transpose(
          from, a.row_stride, strip_rows, depth, out, kTileRows,
          {.begin = from + kTileRows * a.row_stride, .row_step = a.row_stride, .element_step = 1});
    } else {
      for (int64_t r = 0; r < strip_rows; ++r) {
        const float* row = from + r * a.row_stride;
        for (int64_t k = 0; k < depth; ++k) out[k * kTileRows + r] = row[k * a.column_stride];
      }
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
        // Whole strips are copied at once, which a transposed matrix allows.
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
  int64_t row, rows;        // rows of C
  int64_t column, columns;  // columns of C
  int64_t depth;
  const float* packed_b;  // panels of the columns of the block
  Store store;
  bool last;  // the last of the pieces: what follows the sum is done
};

// A block of A in strips of kTileRows rows; strip i starts at data + i * stride.
struct Strips {
  const float* data;
  int64_t stride;
  int64_t row_stride, column_stride;  // between the elements of a strip
};

// The values are packed: a step is one k.
struct FloatOperands {
  static int64_t Steps(int64_t depth) { return depth; }
  static HWY_INLINE void PackPanels(const MatrixView& b, int64_t depth, int64_t columns,
                                    float* out) {
    PackB(b, depth, columns, out);
  }
  static HWY_INLINE Strips PackStrips(const MatrixView& a, const Block& block, float* scratch) {
    if (a.row_stride == 1) {
      PackTransposedA(a, block.rows, block.depth, scratch);
    } else if (block.columns > kPackedColumns) {
      PackA(a, block.rows, block.depth, scratch);
    } else {
      return {.data = a.data,
              .stride = a.row_stride,
              .row_stride = a.row_stride,
              .column_stride = a.column_stride};
    }
    return {.data = scratch, .stride = block.depth, .row_stride = 1, .column_stride = kTileRows};
  }
  static HWY_INLINE void Multiply(int64_t rows, const Strips& strips, int64_t row,
                                  const float* panel, int64_t steps, float* c, int64_t c_stride,
                                  int64_t columns, Store store) {
    TileOfRows<kTileRows>(rows, strips.data + row * strips.stride, strips.row_stride,
                          strips.column_stride, panel, steps, c, c_stride, columns, store);
  }
};

#if HWY_TARGET <= HWY_AVX2
// Words of two values are packed: a step is two k. Words and floats are of one size, so panels and
// strips lie where those of floats would, in half the space.
template <typename Dot>
struct PairOperands {
  static int64_t Steps(int64_t depth) { return PairSteps(depth); }
  static HWY_INLINE void PackPanels(const MatrixView& b, int64_t depth, int64_t columns,
                                    float* out) {
    PackPairsOfB(b, depth, columns, reinterpret_cast<uint32_t*>(out));
  }
  static HWY_INLINE Strips PackStrips(const MatrixView& a, const Block& block, float* scratch) {
    PackPairsOfA(a, block.rows, block.depth, reinterpret_cast<uint32_t*>(scratch));
    return {.data = scratch,
            .stride = PairSteps(block.depth),
            .row_stride = 1,
            .column_stride = kTileRows};
  }
  static HWY_INLINE void Multiply(int64_t rows, const Strips& strips, int64_t row,
                                  const float* panel, int64_t steps, float* c, int64_t c_stride,
                                  int64_t columns, Store store) {
    PairTileOfRows<Dot, kTileRows>(
        rows, reinterpret_cast<const uint32_t*>(strips.data + row * strips.stride),
        reinterpret_cast<const uint32_t*>(panel), steps, c, c_stride, columns, store);
  }
};

#endif

// Bias and rounding of complete sums, the rows of a tile or long ones.
template <Format kResult>
HWY_INLINE void FinishRows(float* c, int64_t c_stride, int64_t rows, int64_t columns,
                           const float* bias) {
  const Tag d;
  const int64_t lanes = Lanes();
  if (columns == 2 * lanes) {
    const Vector bias0 = bias == nullptr ? hn::Zero(d) : hn::LoadU(d, bias);
    const Vector bias1 = bias == nullptr ? hn::Zero(d) : hn::LoadU(d, bias + lanes);
    for (int64_t i = 0; i < rows; ++i, c += c_stride) {
      Vector sum0 = hn::LoadU(d, c);
      Vector sum1 = hn::LoadU(d, c + lanes);
      if (bias != nullptr) {  // lest -0 become +0
        sum0 = hn::Add(sum0, bias0);
        sum1 = hn::Add(sum1, bias1);
      }
      hn::StoreU(RoundTo<kResult>(sum0), d, c);
      hn::StoreU(RoundTo<kResult>(sum1), d, c + lanes);
    }
    return;
  }
  for (int64_t i = 0; i < rows; ++i, c += c_stride) {
    ForVectors(columns, [&](auto load, auto store) HWY_ATTR {
      const Vector sum = load(c);
      store(RoundTo<kResult>(bias == nullptr ? sum : hn::Add(sum, load(bias))), c);
    });
  }
}

HWY_NOINLINE void Finish(Format result, float* c, int64_t c_stride, int64_t rows, int64_t columns,
                         const float* bias) {
  switch (result) {
    case Format::kFloat32:
      return FinishRows<Format::kFloat32>(c, c_stride, rows, columns, bias);
    case Format::kBfloat16:
      return FinishRows<Format::kBfloat16>(c, c_stride, rows, columns, bias);
    case Format::kFloat16:
      return FinishRows<Format::kFloat16>(c, c_stride, rows, columns, bias);
    // The contract excludes such results, so this is an error of the caller.
    case Format::kE4m3:
    case Format::kE5m2:
      TERCIO_CHECK(false);  // results have 16 bits or more
  }
}

template <typename Operands>
HWY_NOINLINE void ComputeBlock(const GemmArgs& args, const MatrixView& a, const Block& block,
                               float* a_scratch) {
  const int64_t width = PanelColumns();
  const int64_t steps = Operands::Steps(block.depth);
  const Strips strips = Operands::PackStrips(a, block, a_scratch);
  // Bias and rounding wait for the last piece, since they apply to the complete sum.
  const bool finish = block.last && (args.bias != nullptr || args.result != Format::kFloat32);
  for (int64_t j = 0; j < block.columns; j += width) {
    const float* panel = block.packed_b + j * steps;
    const int64_t columns = std::min(width, block.columns - j);
    const float* bias = args.bias == nullptr ? nullptr : args.bias + block.column + j;
    for (int64_t i = 0; i < block.rows; i += kTileRows) {
      const int64_t rows = std::min<int64_t>(kTileRows, block.rows - i);
      float* c = args.c + (block.row + i) * args.n + block.column + j;
      Operands::Multiply(rows, strips, i, panel, steps, c, args.n, columns, block.store);
      if (finish) Finish(args.result, c, args.n, rows, columns, bias);
    }
  }
}

// C is divided into items of whole tiles and whole panels, of nearly equal size.
struct ItemGrid {
  int64_t rows;     // parts of the rows
  int64_t columns;  // parts of the columns
};

int64_t CeilDiv(int64_t value, int64_t unit) { return (value + unit - 1) / unit; }

// About four items for each thread even out their differences. Every item packs its rows of A and
// reads a panel once for each of its tiles: so columns are divided where they are many, then rows,
// then columns again.
ItemGrid DivideItems(int64_t rows, int64_t columns, int threads) {
  const int64_t tiles = CeilDiv(rows, kTileRows);
  ItemGrid grid{.rows = CeilDiv(rows, kRowBlock), .columns = 1};
  if (threads == 1) return grid;
  const int64_t wanted = int64_t{4} * threads;
  grid.columns = std::clamp<int64_t>(CeilDiv(wanted, grid.rows), 1,
                                     std::max<int64_t>(1, columns / kManyColumns));
  grid.rows = std::max(grid.rows, std::min(tiles, CeilDiv(wanted, grid.columns)));
  grid.columns = std::max(grid.columns,
                          std::min(CeilDiv(columns, PanelColumns()), CeilDiv(wanted, grid.rows)));
  return grid;
}

// Part `index` of `parts` of `count` elements in whole units.
struct Range {
  int64_t begin, end;
};
Range PartOf(int64_t index, int64_t parts, int64_t count, int64_t unit) {
  const int64_t units = CeilDiv(count, unit);
  return {units * index / parts * unit, std::min(count, units * (index + 1) / parts * unit)};
}

// Pieces of k that are packed and worked on together: each has a sum of its own, so that short
// leaves cost no more synchronisation than long ones.
struct Group {
  static constexpr int kMost = 32;
  int64_t begin[kMost + 1];  // begin[i] of piece i; begin[count] is the end
  int count = 0;
};

// Depth of the piece that begins at k. A piece never crosses a leaf, whose sum other layouts
// compute alone.
int64_t PieceAt(const GemmArgs& args, int64_t k) {
  const int64_t leaf_end = std::min(args.k, (k / args.leaf + 1) * args.leaf);
  return std::min(kPieceRows, leaf_end - k);
}

Group GroupAt(const GemmArgs& args, int64_t k, int64_t panel_columns) {
  const int64_t most = std::max(kPieceRows, kGroupFloats / panel_columns);
  Group group;
  group.begin[0] = k;
  int64_t at = k;
  while (at < args.k && group.count < Group::kMost) {
    const int64_t depth = PieceAt(args, at);
    if (at + depth - k > most) break;
    at += depth;
    group.begin[++group.count] = at;
  }
  return group;
}

// Columns [column, column + columns) of C.
template <typename Operands>
void GemmColumns(const GemmArgs& args, int64_t column, int64_t columns, ThreadPool& pool,
                 float* packed_b, float* a_scratch) {
  const int64_t width = PanelColumns();
  const int64_t panels = (columns + width - 1) / width;
  // About four items for each thread even out their differences here as well.
  const int64_t panels_per_item = std::max<int64_t>(1, panels / (4 * pool.threads()));
  const ItemGrid grid = DivideItems(args.m, columns, pool.threads());
  for (int64_t k = 0; k < args.k;) {
    const Group group = GroupAt(args, k, panels * width);
    const auto packed = [&](int piece) {
      return packed_b + (group.begin[piece] - k) * panels * width;  // as if steps were k
    };
    pool.ParallelFor((panels + panels_per_item - 1) / panels_per_item, [&](int64_t item, int) {
      const int64_t begin = item * panels_per_item * width;
      const int64_t end = std::min(columns, begin + panels_per_item * width);
      for (int i = 0; i < group.count; ++i) {
        const int64_t depth = group.begin[i + 1] - group.begin[i];
        const MatrixView part{.data = args.b + group.begin[i] * args.b_row_stride +
                                      (column + begin) * args.b_column_stride,
                              .row_stride = args.b_row_stride,
                              .column_stride = args.b_column_stride};
        Operands::PackPanels(part, depth, end - begin, packed(i) + begin * Operands::Steps(depth));
      }
    });
    pool.ParallelFor(grid.rows * grid.columns, [&](int64_t item, int thread) {
      // The instruction counts denormal numbers as zero, so all ways of multiplying bf16 do.
      const FlushDenormals flush(args.operands == Format::kBfloat16);
      const Range rows = PartOf(item / grid.columns, grid.rows, args.m, kTileRows);
      const Range part = PartOf(item % grid.columns, grid.columns, columns, width);
      Block block;
      block.row = rows.begin;
      block.rows = rows.end - rows.begin;
      block.column = column + part.begin;
      block.columns = part.end - part.begin;
      for (int i = 0; i < group.count; ++i) {
        block.depth = group.begin[i + 1] - group.begin[i];
        block.packed_b = packed(i) + part.begin * Operands::Steps(block.depth);
        // The first piece assigns, so C need not be zero before.
        block.store = group.begin[i] == 0 && !args.accumulate ? Store::kAssign : Store::kAdd;
        block.last = group.begin[i + 1] == args.k;
        const MatrixView a{
            .data = args.a + rows.begin * args.a_row_stride + group.begin[i] * args.a_column_stride,
            .row_stride = args.a_row_stride,
            .column_stride = args.a_column_stride};
        ComputeBlock<Operands>(args, a, block, a_scratch + thread * kRowBlock * kPieceRows);
      }
    });
    k = group.begin[group.count];
  }
}

// The sums of a piece of k go to C.
HWY_INLINE void AddSums(const float* HWY_RESTRICT sums, int64_t rows, int64_t columns, Store store,
                        float* c, int64_t c_stride) {
  for (int64_t i = 0; i < rows; ++i, sums += PanelColumns(), c += c_stride) {
    for (int64_t j = 0; j < columns; ++j) c[j] = store == Store::kAdd ? c[j] + sums[j] : sums[j];
  }
}

// One panel of C, for no more rows than a tile has. scratch: a part of a panel, then the sums.
HWY_INLINE void FewRowsPanel(const GemmArgs& args, int64_t column, int64_t columns,
                             float* scratch) {
  const int64_t width = PanelColumns();
  float* const sums = scratch + kFewRowsDepth * width;
  float* const c = args.c + column;
  const float* const next = args.b + (column + width) * args.b_column_stride;
  for (int64_t k = 0; k < args.k;) {
    const int64_t end = k + PieceAt(args, k);
    const Store store = k == 0 && !args.accumulate ? Store::kAssign : Store::kAdd;
    std::fill(sums, sums + args.m * width, 0.0f);
    for (; k < end; k = std::min(end, k + kFewRowsDepth)) {
      const MatrixView b{.data = args.b + k * args.b_row_stride + column * args.b_column_stride,
                         .row_stride = args.b_row_stride,
                         .column_stride = args.b_column_stride};
      const int64_t depth = std::min(kFewRowsDepth, end - k);
      // A panel of a matrix whose columns lie in memory is one run of it, as is the next.
      PackPanel(b, depth, columns, scratch,
                {.begin = next + k * width, .row_step = 16, .element_step = width});
      ContinueTileOfRows<kTileRows>(args.m, args.a + k * args.a_column_stride, args.a_row_stride,
                                    args.a_column_stride, scratch, depth, sums);
    }
    AddSums(sums, args.m, columns, store, c, args.n);
  }
  if (args.bias == nullptr && args.result == Format::kFloat32) return;
  Finish(args.result, c, args.n, args.m, columns,
         args.bias == nullptr ? nullptr : args.bias + column);
}

// With few rows every panel of B is used once: the thread that packs it multiplies with it, from
// its first-level cache, and nobody waits between the two.
void GemmFewRows(const GemmArgs& args, ThreadPool& pool, float* a_scratch) {
  const int64_t width = PanelColumns();
  const int64_t panels = (args.n + width - 1) / width;
  // Small items, since such a product may be over before a second thread has woken up.
  const int64_t items = std::min<int64_t>(panels, 8 * pool.threads());
  pool.ParallelFor(items, [&](int64_t item, int thread) {
    const FlushDenormals flush(args.operands == Format::kBfloat16);
    const Range range = PartOf(item, items, args.n, width);
    for (int64_t column = range.begin; column < range.end; column += width) {
      FewRowsPanel(args, column, std::min(width, range.end - column),
                   a_scratch + thread * kRowBlock * kPieceRows);
    }
  });
}

template <typename Operands>
void GemmWith(const GemmArgs& args, ThreadPool& pool, float* scratch) {
  // The rows of A are packed behind the panels of B.
  float* a_scratch = scratch + kPieceRows * (kColumnBlock + kMaxPanel);
  // All ways of multiplying give the same bits; for few rows packing costs more than products.
  if (args.m <= kTileRows) return GemmFewRows(args, pool, a_scratch);
  for (int64_t column = 0; column < args.n; column += kColumnBlock) {
    GemmColumns<Operands>(args, column, std::min(kColumnBlock, args.n - column), pool, scratch,
                          a_scratch);
  }
}

void GemmTarget(const GemmArgs& args, ThreadPool& pool, float* scratch) {
#if HWY_TARGET <= HWY_AVX2  // older targets, on which Tercio does not run, do not get the code
  if (args.operands == Format::kBfloat16 && args.method == Bf16Method::kInstruction) {
    return GemmWith<PairOperands<InstructionDot>>(args, pool, scratch);
  }
  if (args.operands == Format::kBfloat16 && args.method == Bf16Method::kPairs) {
    return GemmWith<PairOperands<SoftwareDot>>(args, pool, scratch);
  }
#endif
  GemmWith<FloatOperands>(args, pool, scratch);
}

bool HasInstruction() { return HasDotInstruction(); }

template <typename Dot>
HWY_NOINLINE void DotLanes(const uint32_t* a, const uint32_t* b, const float* start, int64_t steps,
                           float* out) {
  const GemmTag d;
  const PairTag words;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t lane = 0; lane < kDotLanes; lane += lanes) {
    GemmVector acc = hn::LoadU(d, start + lane);
    for (int64_t step = 0; step < steps; ++step) {
      const int64_t at = step * kDotLanes + lane;
      acc = Dot::Apply(hn::LoadU(words, a + at), hn::LoadU(words, b + at), acc);
    }
    hn::StoreU(acc, d, out + lane);
  }
}

void DotsTarget(Bf16Method method, const uint32_t* a, const uint32_t* b, const float* start,
                int64_t steps, float* out) {
  // Comparisons run in the mode of the products.
  const FlushDenormals flush;
  if (method == Bf16Method::kInstruction) return DotLanes<InstructionDot>(a, b, start, steps, out);
  DotLanes<SoftwareDot>(a, b, start, steps, out);
}

}  // namespace tercio::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tercio::kernels {

HWY_EXPORT(GemmTarget);
HWY_EXPORT(HasInstruction);
HWY_EXPORT(DotsTarget);

int64_t GemmScratch(int threads) {
  return kPieceRows * (kColumnBlock + kMaxPanel) + threads * kRowBlock * kPieceRows;
}

void Gemm(const GemmArgs& args, ThreadPool& pool, float* scratch) {
  HWY_DYNAMIC_DISPATCH(GemmTarget)(args, pool, scratch);
}

bool HasBf16Instruction() { return HWY_DYNAMIC_DISPATCH(HasInstruction)(); }

void Bf16Dots(Bf16Method method, const uint32_t* a, const uint32_t* b, const float* start,
              int64_t steps, float* out) {
  HWY_DYNAMIC_DISPATCH(DotsTarget)(method, a, b, start, steps, out);
}

}  // namespace tercio::kernels
#endif
