// The CPU's operations beside the double-precision reference: random inputs, and how near a result
// must be.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/reference/reference_ops.h"

namespace tercio::kernels {

using Floats = std::vector<float>;

// |actual - expected| <= tolerance * the row's largest magnitude.
inline void ExpectRows(const Floats& actual, const reference::Values& expected, int64_t columns,
                       double tolerance, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (size_t row = 0; row < actual.size(); row += static_cast<size_t>(columns)) {
    double largest = 1e-30;
    for (int64_t c = 0; c < columns; ++c) {
      largest = std::max(largest, std::abs(expected[row + static_cast<size_t>(c)]));
    }
    for (int64_t c = 0; c < columns; ++c) {
      const size_t at = row + static_cast<size_t>(c);
      ASSERT_NEAR(actual[at], expected[at], tolerance * largest) << what << " at " << at;
    }
  }
}

// On two threads.
class CpuOpsTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kSeed = 20261121;

  void SetUp() override { RecordProperty("seed", std::to_string(kSeed)); }

  Floats Random(int64_t count, float scale = 1.0f) {
    std::normal_distribution<float> normal(0.0f, scale);
    Floats values(static_cast<size_t>(count));
    for (float& value : values) value = normal(random_);
    return values;
  }
  static reference::Values Exact(const Floats& values) {
    return reference::Values(values.begin(), values.end());
  }

  std::mt19937_64 random_{kSeed};
  std::unique_ptr<Ops> ops_ = CreateCpuOps(2);
};

}  // namespace tercio::kernels
