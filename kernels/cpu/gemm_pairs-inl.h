// Products of bf16 values, two of them in a word: packing and tiles for one instruction set, as
// gemm-inl.h; included once per Highway target.
//
// A word holds the value of k in its upper half and that of k + 1 in its lower one. "Dot" adds both
// products of two words to a sum: acc = fma(a[k], b[k], acc), then acc = fma(a[k+1], b[k+1], acc),
// rounding to nearest each time, denormal numbers being zero: the chain of gemm-inl.h, bit by bit.
// Behind an odd depth stands +0 times -0, which leaves every sum as it is, also -0.
//
// VDPBF16PS is that Dot, by the entry of Intel's Software Developer's Manual (volume 2): in every
// lane the products of the odd (upper) halves first and those of the even (lower) ones second, each
// a fused multiply-add in fp32 that rounds to nearest even, takes denormal inputs for zero and
// flushes denormal results, whatever MXCSR says. oneDNN emulates it by the same two FMAs in the
// same order (bf16_emulation_t::vdpbf16ps). For AMD's processors (Zen 4 and later) no statement
// about order and rounding was found, and which of several NaN comes out is another rule than
// FMA's. So nothing relies on it: a process uses the instruction after comparing its bits
// (bf16_products.h).
#if defined(TERCIO_KERNELS_CPU_GEMM_PAIRS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERCIO_KERNELS_CPU_GEMM_PAIRS_INL_H_
#undef TERCIO_KERNELS_CPU_GEMM_PAIRS_INL_H_
#else
#define TERCIO_KERNELS_CPU_GEMM_PAIRS_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"
#include "kernels/cpu/gemm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tercio::kernels::HWY_NAMESPACE {

using PairTag = hn::RebindToUnsigned<GemmTag>;
using PairVector = hn::Vec<PairTag>;

inline constexpr uint32_t kUpperHalf = 0xffff0000u;
inline constexpr uint32_t kPlusZero = 0;
inline constexpr uint32_t kMinusZero = 0x8000;

// Two fused multiply-adds: the reference for the instruction, on every processor.
struct SoftwareDot {
  static HWY_INLINE GemmVector Apply(PairVector a, PairVector b, GemmVector acc) {
    const GemmTag d;
    const PairVector upper = hn::Set(PairTag(), kUpperHalf);
    acc = hn::MulAdd(hn::BitCast(d, hn::And(a, upper)), hn::BitCast(d, hn::And(b, upper)), acc);
    return hn::MulAdd(hn::BitCast(d, hn::ShiftLeft<16>(a)), hn::BitCast(d, hn::ShiftLeft<16>(b)),
                      acc);
  }
};

#if HWY_TARGET <= HWY_AVX3
// Written as assembly, since Highway 1.0 has no target with AVX512_BF16: so the code around it is
// that of the target, and one template serves both Dots.
struct InstructionDot {
  static HWY_INLINE GemmVector Apply(PairVector a, PairVector b, GemmVector acc) {
    asm("vdpbf16ps %2, %1, %0" : "+v"(acc.raw) : "v"(a.raw), "v"(b.raw));
    return acc;
  }
};
HWY_INLINE bool HasDotInstruction() { return __builtin_cpu_supports("avx512bf16") != 0; }
#else
using InstructionDot = SoftwareDot;  // never chosen
HWY_INLINE bool HasDotInstruction() { return false; }
#endif

HWY_INLINE uint32_t PairOf(float first, uint32_t second) {
  uint32_t bits;
  std::memcpy(&bits, &first, sizeof(bits));
  return (bits & kUpperHalf) | second;
}
HWY_INLINE uint32_t PairOf(float first, float second) {
  uint32_t bits;
  std::memcpy(&bits, &second, sizeof(bits));
  return PairOf(first, bits >> 16);
}

HWY_INLINE int64_t PairSteps(int64_t depth) { return (depth + 1) / 2; }

// Strips of kTileRows rows: out[strip][step][row].
HWY_INLINE void PackPairsOfA(const MatrixView& a, int64_t rows, int64_t depth,
                             uint32_t* HWY_RESTRICT out) {
  const int64_t whole = depth / 2;
  for (int64_t i = 0; i < rows; i += kTileRows) {
    const int64_t strip_rows = std::min<int64_t>(kTileRows, rows - i);
    const float* from = a.data + i * a.row_stride;
    if (a.row_stride == 1) {  // neighbours in a strip are neighbours in memory
      for (int64_t step = 0; step < whole; ++step) {
        const float* first = from + 2 * step * a.column_stride;
        const float* second = first + a.column_stride;
        for (int64_t r = 0; r < strip_rows; ++r) {
          out[step * kTileRows + r] = PairOf(first[r], second[r]);
        }
      }
    } else {
      for (int64_t r = 0; r < strip_rows; ++r) {
        const float* row = from + r * a.row_stride;
        for (int64_t step = 0; step < whole; ++step) {
          out[step * kTileRows + r] =
              PairOf(row[2 * step * a.column_stride], row[(2 * step + 1) * a.column_stride]);
        }
      }
    }
    if (depth % 2 != 0) {
      const float* last = from + (depth - 1) * a.column_stride;
      for (int64_t r = 0; r < strip_rows; ++r) {
        out[whole * kTileRows + r] = PairOf(last[r * a.row_stride], kPlusZero);
      }
    }
    out += PairSteps(depth) * kTileRows;
  }
}

// A whole panel of a matrix whose rows lie in memory, as PackPairsPanel.
HWY_INLINE void PackPairsOfRows(const MatrixView& b, int64_t depth, uint32_t* HWY_RESTRICT out) {
  const GemmTag d;
  const PairTag words;
  const int64_t width = PanelColumns();
  const int64_t lanes = width / 2;
  for (int64_t k = 0; k < depth; k += 2) {
    const float* first = b.data + k * b.row_stride;
    for (int64_t c = 0; c < width; c += lanes) {
      const auto upper = hn::BitCast(words, hn::LoadU(d, first + c));
      const auto lower =
          k + 1 < depth
              ? hn::ShiftRight<16>(hn::BitCast(words, hn::LoadU(d, first + b.row_stride + c)))
              : hn::Set(words, kMinusZero);
      hn::Store(hn::Or(hn::And(upper, hn::Set(words, kUpperHalf)), lower), words, out + c);
    }
    out += width;
  }
}

// One panel: columns [0, columns) of b, depth rows. `out` is aligned to a vector.
HWY_INLINE void PackPairsPanel(const MatrixView& b, int64_t depth, int64_t columns,
                               uint32_t* HWY_RESTRICT out) {
  const int64_t width = PanelColumns();
  if (b.column_stride == 1 && columns == width) return PackPairsOfRows(b, depth, out);
  // Blocks of 16 keep the writes of the transposed case inside the first-level cache.
  for (int64_t step0 = 0; step0 < PairSteps(depth); step0 += 16) {
    const int64_t end = std::min(PairSteps(depth), step0 + 16);
    const int64_t whole = std::min(depth / 2, end);
    for (int64_t c = 0; c < columns; ++c) {
      const float* column = b.data + c * b.column_stride;
      for (int64_t step = step0; step < whole; ++step) {
        out[step * width + c] =
            PairOf(column[2 * step * b.row_stride], column[(2 * step + 1) * b.row_stride]);
      }
      if (whole < end) {
        out[whole * width + c] = PairOf(column[(depth - 1) * b.row_stride], kMinusZero);
      }
    }
    for (int64_t step = step0; step < end; ++step) {
      for (int64_t c = columns; c < width; ++c) out[step * width + c] = 0;
    }
  }
}

HWY_INLINE void PackPairsOfB(const MatrixView& b, int64_t depth, int64_t columns, uint32_t* out) {
  const int64_t width = PanelColumns();
  for (int64_t c = 0; c < columns; c += width) {
    const MatrixView part{.data = b.data + c * b.column_stride,
                          .row_stride = b.row_stride,
                          .column_stride = b.column_stride};
    PackPairsPanel(part, depth, std::min(width, columns - c), out + c * PairSteps(depth));
  }
}

// One tile of `Rows` x one panel. strip[step * kTileRows + row], panel[step * PanelColumns() + c].
template <typename Dot, int Rows>
HWY_INLINE void PairTile(const uint32_t* HWY_RESTRICT strip, const uint32_t* HWY_RESTRICT panel,
                         int64_t steps, float* HWY_RESTRICT c, int64_t c_stride, int64_t columns,
                         Store store) {
  const GemmTag d;
  const PairTag words;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  GemmVector acc0[Rows];
  GemmVector acc1[Rows];
#pragma GCC unroll 16
  for (int r = 0; r < Rows; ++r) {
    acc0[r] = hn::Zero(d);
    acc1[r] = hn::Zero(d);
    hwy::Prefetch(c + r * c_stride);
    hwy::Prefetch(c + r * c_stride + columns - 1);
  }
  for (int64_t step = 0; step < steps; ++step) {
    const PairVector b0 = hn::Load(words, panel);
    const PairVector b1 = hn::Load(words, panel + lanes);
    panel += 2 * lanes;
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
      const PairVector x = hn::Set(words, strip[r]);
      acc0[r] = Dot::Apply(x, b0, acc0[r]);
      acc1[r] = Dot::Apply(x, b1, acc1[r]);
    }
    strip += kTileRows;
  }
  StoreTile<Rows>(acc0, acc1, c, c_stride, columns, store);
}

template <typename Dot, int Rows>
HWY_NOINLINE void PairTileOfRows(int64_t rows, const uint32_t* strip, const uint32_t* panel,
                                 int64_t steps, float* c, int64_t c_stride, int64_t columns,
                                 Store store) {
  if (rows == Rows) {
    PairTile<Dot, Rows>(strip, panel, steps, c, c_stride, columns, store);
  } else if constexpr (Rows > 1) {
    PairTileOfRows<Dot, Rows - 1>(rows, strip, panel, steps, c, c_stride, columns, store);
  }
}

}  // namespace tercio::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // TERCIO_KERNELS_CPU_GEMM_PAIRS_INL_H_
