#include "kernels/random.h"

#include <cmath>

namespace tercio::kernels {
namespace {

// Natural logarithm of a double in (0, 1], by exponent extraction and the series of atanh. Own
// code, since libm's last bit differs between versions. Error below 1e-13, far under the fp32 it
// ends in.
double Log(double x) {
  int exponent = 0;
  double mantissa = std::frexp(x, &exponent);  // in [0.5, 1): exact
  if (mantissa < 0.70710678118654752) {
    mantissa *= 2;
    --exponent;
  }
  const double s = (mantissa - 1) / (mantissa + 1);  // |s| < 0.172
  const double s2 = s * s;
  double sum = 0;
  // Terms up to 17 leave less than the error named above.
  for (int k = 17; k >= 1; k -= 2) sum = sum * s2 + 1.0 / k;
  return 2 * s * sum + exponent * 0.69314718055994531;
}

// sin and cos of 2 pi t for t in [0, 1): reduce to an eighth, then Taylor series. Error below
// 1e-14.
void SinCosTurn(double t, double* sine, double* cosine) {
  const int quadrant = static_cast<int>(t * 4 + 0.5);
  const double x = (t - quadrant * 0.25) * 6.28318530717958648;  // in [-pi/4, pi/4]
  const double x2 = x * x;
  double s = 0;
  for (int k = 15; k >= 1; k -= 2) s = 1 - s * x2 / ((k + 1.0) * (k + 2.0));
  s *= x;
  double c = 0;
  for (int k = 16; k >= 0; k -= 2) c = 1 - c * x2 / ((k + 1.0) * (k + 2.0));
  switch (quadrant & 3) {
    case 0:
      *sine = s, *cosine = c;
      break;
    case 1:
      *sine = c, *cosine = -s;
      break;
    case 2:
      *sine = -s, *cosine = -c;
      break;
    default:
      *sine = -c, *cosine = s;
      break;
  }
}

// Box-Muller: two normal values from two words.
void NormalPair(uint32_t a, uint32_t b, double* out) {
  // The 1 keeps the logarithm away from 0.
  const double u = (static_cast<double>(a) + 1.0) * (1.0 / 4294967296.0);  // (0, 1]
  const double radius = std::sqrt(-2 * Log(u));
  double sine = 0;
  double cosine = 0;
  SinCosTurn(static_cast<double>(b) * (1.0 / 4294967296.0), &sine, &cosine);
  out[0] = radius * cosine;
  out[1] = radius * sine;
}

}  // namespace

void NormalRow(const NormalRowArgs& args) {
  const PhiloxKey key = MakeKey(args.seed, kInitializationStream);
  const int64_t end = args.column_begin + args.count;
  for (int64_t block = args.column_begin / 4; block * 4 < end; ++block) {
    const PhiloxBlock bits =
        Philox(key, {static_cast<uint32_t>(args.row), static_cast<uint32_t>(block), args.tensor,
                     static_cast<uint32_t>(args.row >> 32)});
    double normal[4];
    NormalPair(bits[0], bits[1], normal);
    NormalPair(bits[2], bits[3], normal + 2);
    for (int i = 0; i < 4; ++i) {
      const int64_t column = block * 4 + i;
      if (column < args.column_begin || column >= end) continue;
      args.out[column - args.column_begin] =
          static_cast<float>(normal[i] * args.standard_deviation);
    }
  }
}

void UniformRow(const UniformRowArgs& args) {
  const PhiloxKey key = MakeKey(args.seed, kInitializationStream);
  for (int64_t i = 0; i < args.count; ++i) {
    const int64_t column = args.column_begin + i;
    const PhiloxBlock bits =
        Philox(key, {static_cast<uint32_t>(args.row), static_cast<uint32_t>(column / 4),
                     args.tensor, static_cast<uint32_t>(args.row >> 32)});
    const double share = bits[static_cast<size_t>(column % 4)] * (1.0 / 4294967296.0);  // [0, 1)
    args.out[i] = static_cast<float>((2 * share - 1) * double{args.bound});
  }
}

}  // namespace tercio::kernels
