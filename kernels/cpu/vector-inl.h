// Building blocks of the vector code, once per Highway target: fixed 16-lane sums, exp, loops with
// tails.
//
// Sums over a row use 16 virtual lanes whatever the width of a vector: element i goes to lane i mod
// 16, lanes are then added in a fixed tree. So AVX2 and AVX-512 give the same bits.
#if defined(TERCIO_KERNELS_CPU_VECTOR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERCIO_KERNELS_CPU_VECTOR_INL_H_
#undef TERCIO_KERNELS_CPU_VECTOR_INL_H_
#else
#define TERCIO_KERNELS_CPU_VECTOR_INL_H_
#endif

#include <cstdint>
#include <cstring>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tercio::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Tag = hn::CappedTag<float, 16>;
using Vector = hn::Vec<Tag>;

HWY_INLINE int64_t Lanes() { return static_cast<int64_t>(hn::Lanes(Tag())); }

// Loads the first `count` < Lanes() elements, zeros after them.
HWY_INLINE Vector LoadFirst(const float* from, int64_t count) {
  return hn::MaskedLoad(hn::FirstN(Tag(), static_cast<size_t>(count)), Tag(), from);
}
HWY_INLINE void StoreFirst(Vector v, float* to, int64_t count) {
  hn::BlendedStore(v, hn::FirstN(Tag(), static_cast<size_t>(count)), Tag(), to);
}

// body(load, store, i): runs over [0, count) a vector at a time; the tail is masked. `load(p)`
// reads p[i..], `store(v, p)` writes it. Element-wise only, so the tail has the bits of the body.
template <typename Body>
HWY_INLINE void ForVectors(int64_t count, const Body& body) {
  const Tag d;
  const int64_t lanes = Lanes();
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    body([&](const float* p) HWY_ATTR { return hn::LoadU(d, p + i); },
         [&](Vector v, float* p) HWY_ATTR { hn::StoreU(v, d, p + i); });
  }
  if (i < count) {
    body([&](const float* p) HWY_ATTR { return LoadFirst(p + i, count - i); },
         [&](Vector v, float* p) HWY_ATTR { StoreFirst(v, p + i, count - i); });
  }
}

// The fixed tree over 16 lanes.
HWY_INLINE float SumTree(const float* lane) {
  const float a =
      ((lane[0] + lane[8]) + (lane[4] + lane[12])) + ((lane[2] + lane[10]) + (lane[6] + lane[14]));
  const float b =
      ((lane[1] + lane[9]) + (lane[5] + lane[13])) + ((lane[3] + lane[11]) + (lane[7] + lane[15]));
  return a + b;
}

// sum over i of value(i-th vector), value(load) -> Vector must be zero beyond the end (or masked
// here).
template <typename Value>
HWY_INLINE float SumRow(int64_t count, const Value& value) {
  const Tag d;
  const int64_t lanes = Lanes();
  HWY_ALIGN float sums[16] = {};
  constexpr int kParts = 16 / hn::MaxLanes(Tag());
  Vector parts[kParts];
  for (int p = 0; p < kParts; ++p) parts[p] = hn::Zero(d);
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    for (int p = 0; p < kParts; ++p) {
      const int64_t at = i + p * lanes;
      parts[p] =
          hn::Add(parts[p], value([&](const float* x) HWY_ATTR { return hn::LoadU(d, x + at); }));
    }
  }
  for (int p = 0; p < kParts && i + p * lanes < count; ++p) {
    const int64_t at = i + p * lanes;
    const int64_t left = HWY_MIN(lanes, count - at);
    const auto mask = hn::FirstN(d, static_cast<size_t>(left));
    const Vector v =
        value([&](const float* x) HWY_ATTR { return hn::MaskedLoad(mask, d, x + at); });
    parts[p] = hn::Add(parts[p], hn::IfThenElseZero(mask, v));
  }
  for (int p = 0; p < kParts; ++p) hn::Store(parts[p], d, sums + p * lanes);
  return SumTree(sums);
}

// The largest of `count` >= 1 elements: exact in any order.
HWY_INLINE float MaxRow(const float* x, int64_t count) {
  const Tag d;
  const int64_t lanes = Lanes();
  Vector best = hn::Set(d, x[0]);
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) best = hn::Max(best, hn::LoadU(d, x + i));
  float result = hn::GetLane(hn::MaxOfLanes(d, best));
  for (; i < count; ++i) result = x[i] > result ? x[i] : result;
  return result;
}

// exp(x), relative error about 2e-7 (1 to 2 units in the last place). x <= -87.3 gives 0, x > 88.3
// is clamped, NaN stays NaN. Cephes' single-precision scheme: x = n ln2 + r, degree-6 polynomial in
// r, scaled by 2^n.
HWY_INLINE Vector Exp(Vector x) {
  const Tag d;
  const hn::RebindToSigned<Tag> di;
  const auto underflow = hn::Lt(x, hn::Set(d, -87.33654f));
  // x86 returns the second operand of two if one is NaN: so NaN gives NaN.
  x = hn::Min(hn::Set(d, 88.0f), hn::Max(hn::Set(d, -87.33654f), x));
  const Vector n = hn::Round(hn::Mul(x, hn::Set(d, 1.44269504088896341f)));
  Vector r = hn::NegMulAdd(n, hn::Set(d, 0.693359375f), x);
  r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4f), r);
  Vector p = hn::Set(d, 1.9875691500e-4f);
  p = hn::MulAdd(p, r, hn::Set(d, 1.3981999507e-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 8.3334519073e-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 4.1665795894e-2f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.6666665459e-1f));
  p = hn::MulAdd(p, r, hn::Set(d, 5.0000001201e-1f));
  p = hn::MulAdd(p, hn::Mul(r, r), hn::Add(r, hn::Set(d, 1.0f)));
  const auto scale = hn::ShiftLeft<23>(hn::Add(hn::ConvertTo(di, n), hn::Set(di, 127)));
  return hn::IfThenZeroElse(underflow, hn::Mul(p, hn::BitCast(d, scale)));
}

// tanh(x), relative error about 3e-7; NaN stays NaN. Below 0.625 Cephes' polynomial, since the
// formula with exp would lose the digits of small values.
HWY_INLINE Vector Tanh(Vector x) {
  const Tag d;
  const Vector magnitude = hn::Abs(x);
  const Vector square = hn::Mul(x, x);
  Vector p = hn::Set(d, -5.70498872745e-3f);
  p = hn::MulAdd(p, square, hn::Set(d, 2.06390887954e-2f));
  p = hn::MulAdd(p, square, hn::Set(d, -5.37397155531e-2f));
  p = hn::MulAdd(p, square, hn::Set(d, 1.33314422036e-1f));
  p = hn::MulAdd(p, square, hn::Set(d, -3.33332819422e-1f));
  const Vector small = hn::MulAdd(hn::Mul(p, square), x, x);
  const Vector one = hn::Set(d, 1.0f);
  // Exp clamps its argument, so that the quotient is a number for every x.
  const Vector e = Exp(hn::Add(magnitude, magnitude));
  const Vector large = hn::Sub(one, hn::Div(hn::Set(d, 2.0f), hn::Add(e, one)));
  return hn::IfThenElse(hn::Lt(magnitude, hn::Set(d, 0.625f)), small, hn::CopySign(large, x));
}

// A soft cap, and the gradient of what is capped from that of the result.
HWY_INLINE Vector Capped(Vector x, Vector cap) { return hn::Mul(cap, Tanh(hn::Div(x, cap))); }
HWY_INLINE Vector ThroughCap(Vector gradient, Vector capped, Vector cap) {
  const Vector share = hn::Div(capped, cap);
  return hn::Mul(gradient, hn::NegMulAdd(share, share, hn::Set(Tag(), 1.0f)));
}

}  // namespace tercio::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // TERCIO_KERNELS_CPU_VECTOR_INL_H_
