// Rounding to 16-bit formats, in integer and fp32 arithmetic, once per Highway target: every one
// gives the same bits, also those without instructions for these formats.
#if defined(TERCIO_KERNELS_CPU_ROUNDING_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERCIO_KERNELS_CPU_ROUNDING_INL_H_
#undef TERCIO_KERNELS_CPU_ROUNDING_INL_H_
#else
#define TERCIO_KERNELS_CPU_ROUNDING_INL_H_
#endif

#include "hwy/highway.h"
#include "kernels/cpu/vector-inl.h"
#include "kernels/ops.h"

HWY_BEFORE_NAMESPACE();
namespace tercio::kernels::HWY_NAMESPACE {

using Bits = hn::RebindToUnsigned<Tag>;

// Drops the lowest kBits of the significand: to nearest, ties to even. A carry runs on into the
// exponent, up to infinity. A NaN becomes a quiet one of its upper bits.
template <int kBits>
HWY_INLINE Vector DropBits(Vector x) {
  const Bits d;
  const auto bits = hn::BitCast(d, x);
  const auto odd = hn::And(hn::ShiftRight<kBits>(bits), hn::Set(d, 1u));
  const auto sum = hn::Add(hn::Add(bits, hn::Set(d, (1u << (kBits - 1)) - 1)), odd);
  const auto quiet = hn::Or(bits, hn::Set(d, 0x00400000u));
  const Vector kept =
      hn::IfThenElse(hn::Eq(x, x), hn::BitCast(Tag(), sum), hn::BitCast(Tag(), quiet));
  return hn::And(kept, hn::BitCast(Tag(), hn::Set(d, ~((1u << kBits) - 1))));
}

HWY_INLINE Vector ToBfloat16(Vector x) { return DropBits<16>(x); }

HWY_INLINE Vector ToFloat16(Vector x) {
  const Tag d;
  const Vector magnitude = hn::Abs(x);
  Vector rounded = DropBits<13>(magnitude);
  const Vector infinity = hn::BitCast(d, hn::Set(Bits(), 0x7f800000u));
  rounded = hn::IfThenElse(hn::Ge(rounded, hn::Set(d, 65536.0f)), infinity, rounded);
  // Below 2^-14 values lie 2^-24 apart, which is the distance of floats from 0.5 to 1.
  const Vector half = hn::Set(d, 0.5f);
  const Vector small = hn::Sub(hn::Add(magnitude, half), half);
  rounded = hn::IfThenElse(hn::Lt(magnitude, hn::Set(d, 0x1p-14f)), small, rounded);
  return hn::CopySign(rounded, x);
}

// Nothing for fp32.
template <Format kFormat>
HWY_INLINE Vector RoundTo(Vector x) {
  if constexpr (kFormat == Format::kBfloat16) return ToBfloat16(x);
  if constexpr (kFormat == Format::kFloat16) return ToFloat16(x);
  return x;
}

template <Format kFormat>
HWY_INLINE void RoundAll(float* x, int64_t count) {
  ForVectors(count, [&](auto load, auto store) HWY_ATTR { store(RoundTo<kFormat>(load(x)), x); });
}

// Rounds the fresh result of an operation, a row at a time: it is still in the first-level cache.
HWY_INLINE void RoundRow(float* x, int64_t count, Format format) {
  if (format == Format::kBfloat16) RoundAll<Format::kBfloat16>(x, count);
  if (format == Format::kFloat16) RoundAll<Format::kFloat16>(x, count);
}

}  // namespace tercio::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // TERCIO_KERNELS_CPU_ROUNDING_INL_H_
