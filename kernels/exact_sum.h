// Exact sums of squares: a number of 640 bits, from 2^-320 to 2^320, whose additions round nothing,
// so that any order of them has the same result. Pure.
//
// The number is 20 limbs of 32 bits, the lowest first, in words of 64: additions leave their
// carries in the upper half of a word, where 2^31 of them have room. Ranks add carried limbs as
// doubles: those of up to 2^20 ranks are integers below 2^53, which doubles hold exactly.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace tercio::kernels {

inline constexpr int kSumLimbs = 20;
inline constexpr int kLimbBits = 32;
inline constexpr int kLowestBit = -320;
inline constexpr int64_t kLimbMask = (int64_t{1} << kLimbBits) - 1;

// Adds `value` to the limbs. REQUIRES: it is 0, or a multiple of 2^-320 below 2^300. Sums of
// squares of up to 2^20 floats are: a square is a multiple of 2^-298 below 2^256. constexpr, so
// that kernels of a GPU may call it.
constexpr void AddToLimbs(double value, int64_t* limbs) {
  constexpr int kFraction = 52;  // bits of a double behind its leading one
  constexpr int kBias = 1023;
  const auto bits = std::bit_cast<uint64_t>(value);
  if (bits == 0) return;
  uint64_t digits = (bits & ((uint64_t{1} << kFraction) - 1)) | (uint64_t{1} << kFraction);
  // Where the lowest of the digits goes.
  int place = static_cast<int>(bits >> kFraction) - kBias - kFraction - kLowestBit;
  if (place < 0) {
    digits >>= -place;  // zeros
    place = 0;
  }
  const int limb = place / kLimbBits;
  const int shift = place % kLimbBits;
  limbs[limb] += static_cast<int64_t>(digits << shift) & kLimbMask;
  limbs[limb + 1] += static_cast<int64_t>(digits >> (kLimbBits - shift)) & kLimbMask;
  limbs[limb + 2] += static_cast<int64_t>((digits >> kLimbBits) >> (kLimbBits - shift));
}

// Moves the carries up: each limb is then below 2^32.
constexpr void CarryLimbs(int64_t* limbs) {
  for (int i = 0; i + 1 < kSumLimbs; ++i) {
    limbs[i + 1] += limbs[i] >> kLimbBits;
    limbs[i] &= kLimbMask;
  }
}

// The double nearest to the sum, ties to even. `sums`: limbs, or sums of limbs of several ranks.
inline double RoundedSum(const double* sums) {
  int64_t limbs[kSumLimbs];
  for (int i = 0; i < kSumLimbs; ++i) limbs[i] = static_cast<int64_t>(sums[i]);
  CarryLimbs(limbs);
  int top = kSumLimbs - 1;
  while (top > 0 && limbs[top] == 0) --top;
  const auto digits = [&](int limb) {
    return limb < 0 ? uint64_t{0} : static_cast<uint64_t>(limbs[limb]);
  };
  // The 64 bits from the leading one on; the lowest also stands for all bits below it.
  const int width = std::bit_width(digits(top));
  uint64_t leading = ((digits(top) << kLimbBits) | digits(top - 1)) << (kLimbBits - width);
  leading |= digits(top - 2) >> width;
  uint64_t rest = digits(top - 2) & ((uint64_t{1} << width) - 1);
  for (int i = 0; i < top - 2; ++i) rest |= digits(i);
  if (rest != 0) leading |= 1;
  return std::ldexp(static_cast<double>(leading), kLimbBits * top + width - 64 + kLowestBit);
}

}  // namespace tercio::kernels
