// Rounding to 16-bit formats, in integer and fp32 arithmetic: every vector target gives the same
// bits, also those without instructions for these formats.
#include <algorithm>

#include "kernels/cpu/parts.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/rounding.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tercio::kernels::HWY_NAMESPACE {

using Bits = hn::RebindToUnsigned<Tag>;

// Drops the lowest kBits of the significand: to nearest, ties to even. A carry runs on into the
// exponent, up to infinity. Not for NaN.
template <int kBits>
HWY_INLINE Vector DropBits(Vector x) {
  const Bits d;
  const auto bits = hn::BitCast(d, x);
  const auto odd = hn::And(hn::ShiftRight<kBits>(bits), hn::Set(d, 1u));
  const auto half = hn::Set(d, (1u << (kBits - 1)) - 1);
  const auto sum = hn::Add(bits, hn::Add(half, odd));
  return hn::BitCast(Tag(), hn::And(sum, hn::Set(d, ~((1u << kBits) - 1))));
}

// `rounded`, but where x is NaN: a quiet NaN of the upper bits.
template <int kBits>
HWY_INLINE Vector KeepNan(Vector x, Vector rounded) {
  const Bits d;
  const auto upper = hn::And(hn::BitCast(d, x), hn::Set(d, ~((1u << kBits) - 1)));
  const Vector quiet = hn::BitCast(Tag(), hn::Or(upper, hn::Set(d, 0x00400000u)));
  return hn::IfThenElse(hn::Eq(x, x), rounded, quiet);
}

HWY_INLINE Vector ToBfloat16(Vector x) { return KeepNan<16>(x, DropBits<16>(x)); }

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
  return KeepNan<13>(x, hn::CopySign(rounded, x));
}

void RoundRange(float* x, int64_t count, Format format) {
  if (format == Format::kBfloat16) {
    ForVectors(count, [&](auto load, auto store) HWY_ATTR { store(ToBfloat16(load(x)), x); });
  } else {
    ForVectors(count, [&](auto load, auto store) HWY_ATTR { store(ToFloat16(load(x)), x); });
  }
}

}  // namespace tercio::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tercio::kernels {

HWY_EXPORT(RoundRange);

void RoundCpu(float* x, int64_t count, Format format, ThreadPool& pool) {
  if (format == Format::kFloat32) return;
  OverRows(count, 1, pool, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(RoundRange)(x + begin, end - begin, format);
  });
}

}  // namespace tercio::kernels
#endif
