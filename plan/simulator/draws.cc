#include "plan/simulator/draws.h"

#include <cmath>

#include "common/check.h"

namespace tercio::plan::simulator {
namespace {

uint64_t Rotated(uint64_t value, int by) { return (value << by) | (value >> (64 - by)); }

// Splitmix64, which makes good states of neighbouring seeds.
uint64_t NextSeed(uint64_t* seed) {
  *seed += 0x9e3779b97f4a7c15;
  uint64_t mixed = *seed;
  mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9;
  mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111eb;
  return mixed ^ (mixed >> 31);
}

template <size_t kTerms>
double Polynomial(const std::array<double, kTerms>& terms, double x) {
  double sum = 0;
  // The last coefficient is that of the highest power.
  for (size_t i = kTerms; i-- > 0;) sum = sum * x + terms[i];
  return sum;
}

// The rational functions of AS 241 (PPND16): around the middle, in the tail, far out.
constexpr std::array<double, 8> kMiddleOver = {3.3871328727963666080e0,  1.3314166789178437745e+2,
                                               1.9715909503065514427e+3, 1.3731693765509461125e+4,
                                               4.5921953931549871457e+4, 6.7265770927008700853e+4,
                                               3.3430575583588128105e+4, 2.5090809287301226727e+3};
constexpr std::array<double, 8> kMiddleUnder = {1.0,
                                                4.2313330701600911252e+1,
                                                6.8718700749205790830e+2,
                                                5.3941960214247511077e+3,
                                                2.1213794301586595867e+4,
                                                3.9307895800092710610e+4,
                                                2.8729085735721942674e+4,
                                                5.2264952788528545610e+3};
constexpr std::array<double, 8> kTailOver = {1.42343711074968357734e0,  4.63033784615654529590e0,
                                             5.76949722146069140550e0,  3.64784832476320460504e0,
                                             1.27045825245236838258e0,  2.41780725177450611770e-1,
                                             2.27238449892691845833e-2, 7.74545014278341407640e-4};
constexpr std::array<double, 8> kTailUnder = {1.0,
                                              2.05319162663775882187e0,
                                              1.67638483018380384940e0,
                                              6.89767334985100004550e-1,
                                              1.48103976427480074590e-1,
                                              1.51986665636164571966e-2,
                                              5.47593808499534494600e-4,
                                              1.05075007164441684324e-9};
constexpr std::array<double, 8> kFarOver = {6.65790464350110377720e0,  5.46378491116411436990e0,
                                            1.78482653991729133580e0,  2.96560571828504891230e-1,
                                            2.65321895265761230930e-2, 1.24266094738807843860e-3,
                                            2.71155556874348757815e-5, 2.01033439929228813265e-7};
constexpr std::array<double, 8> kFarUnder = {1.0,
                                             5.99832206555887937690e-1,
                                             1.36929880922735805310e-1,
                                             1.48753612908506148525e-2,
                                             7.86869131145613259100e-4,
                                             1.84631831751005468180e-5,
                                             1.42151175831644588870e-7,
                                             2.04426310338993978564e-15};

}  // namespace

Draws::Draws(uint64_t seed, uint64_t stream) {
  uint64_t start = seed;
  start = NextSeed(&start) ^ stream;
  for (uint64_t& word : state_) word = NextSeed(&start);
}

uint64_t Draws::Bits() {
  const uint64_t result = Rotated(state_[0] + state_[3], 23) + state_[0];
  const uint64_t shifted = state_[1] << 17;
  state_[2] ^= state_[0];
  state_[3] ^= state_[1];
  state_[1] ^= state_[2];
  state_[0] ^= state_[3];
  state_[2] ^= shifted;
  state_[3] = Rotated(state_[3], 45);
  return result;
}

double Draws::Uniform() {
  // The middle of one of 2^53 equal parts, or of 2^52 near 1: neither 0 nor 1.
  return (static_cast<double>(Bits() >> 12) + 0.5) * 0x1p-52;
}

int64_t Draws::Below(int64_t limit) {
  TERCIO_CHECK_GE(limit, 1);
  return static_cast<int64_t>(Uniform() * static_cast<double>(limit));
}

double Draws::Exponential(double mean) { return -mean * std::log(Uniform()); }

double Draws::Normal() { return NormalExceededWith(Uniform()); }

double Draws::FailuresBeforeSuccess(double probability) {
  if (probability >= 1) return 0;
  return std::floor(std::log(Uniform()) / std::log1p(-probability));
}

double NormalExceededWith(double tail) {
  const double from_middle = 0.5 - tail;
  if (std::abs(from_middle) <= 0.425) {
    const double r = 0.180625 - from_middle * from_middle;
    return from_middle * Polynomial(kMiddleOver, r) / Polynomial(kMiddleUnder, r);
  }
  // The smaller tail of both sides.
  const double near = from_middle > 0 ? tail : 1 - tail;
  const double r = std::sqrt(-std::log(near));
  const double size = r <= 5 ? Polynomial(kTailOver, r - 1.6) / Polynomial(kTailUnder, r - 1.6)
                             : Polynomial(kFarOver, r - 5) / Polynomial(kFarUnder, r - 5);
  return from_middle > 0 ? size : -size;
}

double LargestNormal(double uniform, double count) {
  if (count == 1) return NormalExceededWith(1 - uniform);
  // 1 - uniform^(1 / count), without the loss of digits where that is near 0.
  return NormalExceededWith(-std::expm1(std::log(uniform) / count));
}

}  // namespace tercio::plan::simulator
