#include "kernels/exact_sum.h"

#include <algorithm>
#include <array>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace tercio::kernels {
namespace {

using Limbs = std::array<int64_t, kSumLimbs>;
using Sums = std::array<double, kSumLimbs>;
// 113 bits, so that sums of some doubles of one magnitude are exact in it.
__extension__ typedef __float128 Quad;

Limbs LimbsOf(const std::vector<double>& values) {
  Limbs limbs = {};
  for (const double value : values) AddToLimbs(value, limbs.data());
  CarryLimbs(limbs.data());
  return limbs;
}

double SumOf(const std::vector<double>& values) {
  const Limbs limbs = LimbsOf(values);
  const Sums sums = [&] {
    Sums all = {};
    std::copy(limbs.begin(), limbs.end(), all.begin());
    return all;
  }();
  return RoundedSum(sums.data());
}

TEST(ExactSum, KeepsEveryBitOfOneNumber) {
  // The least and the largest sums of blocks, and numbers whose bits cross limbs.
  std::vector<double> values = {0, 0x1p-298, 0x1.fffffffffffffp-246, 1, 0x1.fffffffffffffp267};
  for (int exponent = -246; exponent < 268; ++exponent) {
    values.push_back(std::ldexp(0x1.23456789abcdfp0, exponent));
  }
  for (const double value : values) EXPECT_EQ(SumOf({value}), value);
}

TEST(ExactSum, RoundsOnceToTheNearest) {
  // One and a half units of the last place, a bit less, a bit more; ties go to even.
  EXPECT_EQ(SumOf({1, 0x1p-53}), 1);
  EXPECT_EQ(SumOf({1, 0x1p-53, 0x1p-298}), 1 + 0x1p-52);
  EXPECT_EQ(SumOf({1 + 0x1p-52, 0x1p-53}), 1 + 0x1p-51);
  // A sum in double would lose each of them.
  std::vector<double> values = {0x1p60};
  values.insert(values.end(), 1024, 1.0 / 16);
  EXPECT_EQ(SumOf(values), 0x1p60);
  values.insert(values.end(), 4096, 1.0 / 16);
  EXPECT_EQ(SumOf(values), 0x1p60 + 256);  // the multiple of 256 that is nearest to 320 more
}

TEST(ExactSum, IsTheSumOfQuads) {
  std::mt19937_64 random(5);
  for (const int count : {1, 2, 3, 10, 1000, 20000}) {
    // 53 bits, over 40 binary places and up to 2^15 numbers: 108 bits.
    std::uniform_int_distribution<int> exponent(-20, 20);
    std::uniform_int_distribution<uint64_t> digits(uint64_t{1} << 52, (uint64_t{1} << 53) - 1);
    std::vector<double> values;
    Quad exact = 0;
    for (int i = 0; i < count; ++i) {
      values.push_back(std::ldexp(static_cast<double>(digits(random)), exponent(random) - 52));
      exact += values.back();
    }
    EXPECT_EQ(SumOf(values), static_cast<double>(exact)) << count;
  }
}

// Values are dealt to ranks at random, and ranks add their limbs in any order.
TEST(ExactSum, DoesNotDependOnRanksOrTheirOrder) {
  std::mt19937_64 random(7);
  std::vector<double> values;
  for (int i = 0; i < 5000; ++i) {
    const auto x = std::ldexp(std::generate_canonical<double, 53>(random), -140 + i % 260);
    values.push_back(std::max(x * x, 0x1p-298));
  }
  for (double& value : values) {
    // A multiple of the least square, as all sums of squares of floats are.
    if (value < 0x1p-240) value = std::ldexp(std::round(std::ldexp(value, 298)), -298);
  }
  const double whole = SumOf(values);
  for (const int ranks : {1, 2, 3, 8, 64}) {
    std::vector<std::vector<double>> parts(static_cast<size_t>(ranks));
    for (const double value : values) parts[random() % parts.size()].push_back(value);
    std::shuffle(parts.begin(), parts.end(), random);
    Sums sums = {};
    for (const std::vector<double>& part : parts) {
      const Limbs limbs = LimbsOf(part);
      for (size_t i = 0; i < limbs.size(); ++i) sums[i] += static_cast<double>(limbs[i]);
    }
    EXPECT_EQ(RoundedSum(sums.data()), whole) << ranks;
  }
}

TEST(ExactSum, HasRoomForTheLargestJobs) {
  // 2^20 ranks with the largest carried limbs stay integers that doubles hold.
  const double most = static_cast<double>(kLimbMask) * (1 << 20);
  EXPECT_LT(most, 0x1p53);
  Sums sums = {};
  sums[3] = most;
  EXPECT_EQ(RoundedSum(sums.data()), std::ldexp(most, 3 * kLimbBits + kLowestBit));
}

}  // namespace
}  // namespace tercio::kernels
