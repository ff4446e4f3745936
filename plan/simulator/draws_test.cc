#include "plan/simulator/draws.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "gtest/gtest.h"

namespace tercio::plan::simulator {
namespace {

TEST(Draws, AreThoseOfTheirSeedAndStream) {
  Draws one(7, 0);
  Draws same(7, 0);
  Draws other_stream(7, 1);
  Draws other_seed(8, 0);
  for (int i = 0; i < 100; ++i) {
    const uint64_t bits = one.Bits();
    EXPECT_EQ(bits, same.Bits());
    EXPECT_NE(bits, other_stream.Bits());
    EXPECT_NE(bits, other_seed.Bits());
  }
}

TEST(Draws, HaveTheMomentsOfTheirDistributions) {
  Draws draws(1, 0);
  constexpr int kDraws = 200000;
  double uniform = 0;
  double exponential = 0;
  double normal = 0;
  double squares = 0;
  double failures = 0;
  for (int i = 0; i < kDraws; ++i) {
    const double u = draws.Uniform();
    ASSERT_GT(u, 0);
    ASSERT_LT(u, 1);
    uniform += u / kDraws;
    exponential += draws.Exponential(3) / kDraws;
    const double x = draws.Normal();
    normal += x / kDraws;
    squares += x * x / kDraws;
    failures += draws.FailuresBeforeSuccess(0.2) / kDraws;
  }
  EXPECT_NEAR(uniform, 0.5, 0.004);
  EXPECT_NEAR(exponential, 3, 0.03);
  EXPECT_NEAR(normal, 0, 0.01);
  EXPECT_NEAR(squares, 1, 0.015);
  EXPECT_NEAR(failures, 4, 0.05);  // (1 - p) / p
  EXPECT_EQ(draws.FailuresBeforeSuccess(1), 0);
}

// The standard library has the function that they invert.
TEST(Draws, QuantilesInvertTheDistribution) {
  for (const double tail : {1e-300, 1e-20, 1e-9, 0.001, 0.05, 0.3, 0.5, 0.7, 0.95, 0.999}) {
    const double x = NormalExceededWith(tail);
    EXPECT_NEAR(0.5 * std::erfc(x / std::sqrt(2.0)) / tail, 1, 1e-12) << tail;
  }
}

// The distance between two samples' distributions (Kolmogorov and Smirnov).
double Distance(std::vector<double> a, std::vector<double> b) {
  std::sort(a.begin(), a.end());
  std::sort(b.begin(), b.end());
  double distance = 0;
  size_t j = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    while (j < b.size() && b[j] <= a[i]) ++j;
    distance = std::max(distance, std::abs(static_cast<double>(i + 1) / a.size() -
                                           static_cast<double>(j) / b.size()));
  }
  return distance;
}

TEST(Draws, TheLargestAtOnceIsDistributedAsTheLargestOfAll) {
  for (const int count : {1, 2, 8, 128}) {
    Draws draws(3, static_cast<uint64_t>(count));
    std::vector<double> at_once;
    std::vector<double> of_all;
    constexpr int kSamples = 4000;
    for (int i = 0; i < kSamples; ++i) {
      at_once.push_back(LargestNormal(draws.Uniform(), count));
      double largest = -1e9;
      for (int j = 0; j < count; ++j) largest = std::max(largest, draws.Normal());
      of_all.push_back(largest);
    }
    // Two samples of one distribution are further apart in one of a thousand cases.
    EXPECT_LT(Distance(at_once, of_all), 1.95 * std::sqrt(2.0 / kSamples)) << count;
  }
  // The median of twelve thousand: x with F(x)^12288 = 1/2.
  EXPECT_NEAR(LargestNormal(0.5, 12288), 3.8612384, 1e-6);
}

}  // namespace
}  // namespace tercio::plan::simulator
