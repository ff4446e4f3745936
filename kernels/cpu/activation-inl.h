// The functions of feed-forward layers and their slopes, once per Highway target. NaN stays NaN.
#if defined(TERCIO_KERNELS_CPU_ACTIVATION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERCIO_KERNELS_CPU_ACTIVATION_INL_H_
#undef TERCIO_KERNELS_CPU_ACTIVATION_INL_H_
#else
#define TERCIO_KERNELS_CPU_ACTIVATION_INL_H_
#endif

#include "hwy/highway.h"
#include "kernels/cpu/vector-inl.h"
#include "kernels/ops.h"

HWY_BEFORE_NAMESPACE();
namespace tercio::kernels::HWY_NAMESPACE {

// gelu(x) = x * s with s = 1 / (1 + exp(-2u)), u = sqrt(2/pi) (x + 0.044715 x^3): the tanh form.
struct TanhGelu {
  static HWY_INLINE Vector Share(Vector x) {
    const Tag d;
    const Vector x2 = hn::Mul(x, x);
    // The factor is -2 sqrt(2 / pi), so that Exp(u) is the exp(-2u) of the formula.
    const Vector u = hn::Mul(hn::Mul(x, hn::Set(d, -1.5957691216057308f)),
                             hn::MulAdd(x2, hn::Set(d, 0.044715f), hn::Set(d, 1.0f)));
    return hn::Div(hn::Set(d, 1.0f), hn::Add(hn::Set(d, 1.0f), Exp(u)));
  }
  static HWY_INLINE Vector Value(Vector x) { return hn::Mul(x, Share(x)); }
  // d gelu / dx = s + x s (1 - s) 2 u',  2 u' = 2 sqrt(2/pi) (1 + 3 * 0.044715 x^2)
  static HWY_INLINE Vector Slope(Vector x) {
    const Tag d;
    const Vector s = Share(x);
    const Vector slope =
        hn::MulAdd(hn::Mul(x, x), hn::Set(d, 0.2140644488f), hn::Set(d, 1.5957691216f));
    return hn::Add(s, hn::Mul(hn::Mul(x, s), hn::Mul(hn::Sub(hn::Set(d, 1.0f), s), slope)));
  }
};

// gelu(x) = x Phi(x). For x >= 0, Phi(-x) = exp(-x^2 / 2) t P(t) with t = 1 / (1 + 0.3 x): P is a
// least-squares fit of the relative error over [0, 13.2], which is below 1e-8.
struct ExactGelu {
  static HWY_INLINE Vector Density(Vector x) {  // sqrt(2 pi) times that of the normal distribution
    const Tag d;
    return Exp(hn::Mul(hn::Mul(x, x), hn::Set(d, -0.5f)));
  }
  static HWY_INLINE Vector Distribution(Vector x, Vector density) {
    const Tag d;
    const Vector one = hn::Set(d, 1.0f);
    // t maps all of x >= 0 to (0, 1], where one polynomial suffices.
    const Vector t = hn::Div(one, hn::MulAdd(hn::Abs(x), hn::Set(d, 0.3f), one));
    Vector p = hn::Set(d, -0.020876582711935043f);
    for (const float factor : {0.11379720270633698f, -0.23137788474559784f, 0.19594357907772064f,
                               -0.08282140642404556f, 0.09794124960899353f, 0.07778900861740112f,
                               0.1103600487112999f, 0.11955738067626953f, 0.11968740075826645f}) {
      p = hn::MulAdd(p, t, hn::Set(d, factor));
    }
    const Vector tail = hn::Mul(hn::Mul(density, t), p);
    // The small side is the one that is computed, so that it keeps its digits; 1 - tail would lose
    // them.
    return hn::IfThenElse(hn::Lt(x, hn::Zero(d)), tail, hn::Sub(one, tail));
  }
  static HWY_INLINE Vector Share(Vector x) { return Distribution(x, Density(x)); }
  static HWY_INLINE Vector Value(Vector x) { return hn::Mul(x, Share(x)); }
  // d gelu / dx = Phi(x) + x phi(x)
  static HWY_INLINE Vector Slope(Vector x) {
    const Tag d;
    const Vector density = Density(x);
    return hn::MulAdd(hn::Mul(x, hn::Set(d, 0.3989422804f)), density, Distribution(x, density));
  }
};

struct Relu {
  static HWY_INLINE Vector Value(Vector x) {
    return hn::IfThenZeroElse(hn::Lt(x, hn::Zero(Tag())), x);
  }
  static HWY_INLINE Vector Slope(Vector x) {
    const Tag d;
    return hn::IfThenZeroElse(hn::Le(x, hn::Zero(d)), hn::Set(d, 1.0f));
  }
};

struct Silu {
  static HWY_INLINE Vector Share(Vector x) {
    const Tag d;
    const Vector one = hn::Set(d, 1.0f);
    // Exp clamps its argument, so that the quotient is a number for every x.
    return hn::Div(one, hn::Add(one, Exp(hn::Neg(x))));
  }
  static HWY_INLINE Vector Value(Vector x) { return hn::Mul(x, Share(x)); }
  // d silu / dx = s + x s (1 - s)
  static HWY_INLINE Vector Slope(Vector x) {
    const Vector s = Share(x);
    return hn::MulAdd(hn::Mul(x, s), hn::Sub(hn::Set(Tag(), 1.0f), s), s);
  }
};

// Calls body(functor) with one of the above.
template <typename Body>
HWY_INLINE void ByFunction(Activation function, const Body& body) {
  switch (function) {
    case Activation::kGeluTanh:
      return body(TanhGelu());
    case Activation::kGelu:
      return body(ExactGelu());
    case Activation::kRelu:
      return body(Relu());
    case Activation::kSilu:
      return body(Silu());
  }
}

}  // namespace tercio::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // TERCIO_KERNELS_CPU_ACTIVATION_INL_H_
