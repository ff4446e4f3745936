// The comparison of two results sees every element of the rows and nothing beside them, in every
// order of threads.
#include "kernels/cuda/attention_check.h"

#include <cuda_bf16.h>

#include <cmath>
#include <vector>

#include "kernels/cuda/testing/device_test.h"

namespace tercio::kernels::cuda {
namespace {

constexpr int64_t kRows = 70;
constexpr int64_t kColumns = 40;
constexpr int64_t kExpectedStride = 40;
constexpr int64_t kActualStride = 45;
constexpr float kNear = 0.01f;

class AttentionCheckTest : public DeviceTest {
 protected:
  // {differ, compared, undecided} of matrices that are one, but for what a test has changed.
  std::vector<uint32_t> Check() {
    return SameInEveryOrder([this] {
      DeviceBuffer<float> expected(expected_, 0), actual(actual_, 0), peaks(kCheckBlocks);
      DeviceBuffer<uint32_t> flags(std::vector<uint32_t>(3), 0);
      CheckCuda({.expected = expected.data(),
                 .actual = actual.data(),
                 .rows = kRows,
                 .columns = kColumns,
                 .expected_stride = kExpectedStride,
                 .actual_stride = kActualStride},
                kNear, peaks.data(), reinterpret_cast<CheckFlags*>(flags.data()), stream_);
      return flags.Read(stream_);
    });
  }
  void Fill(float scale) {
    expected_.assign(kRows * kExpectedStride, 0);
    actual_.assign(kRows * kActualStride, std::nanf(""));  // between the rows, too
    for (int64_t row = 0; row < kRows; ++row) {
      for (int64_t column = 0; column < kColumns; ++column) {
        const float value = scale * static_cast<float>((row * 7 + column * 3) % 11 - 5);
        expected_[static_cast<size_t>(row * kExpectedStride + column)] = value;
        Actual(row, column) = value;
      }
    }
  }
  float& Actual(int64_t row, int64_t column) {
    return actual_[static_cast<size_t>(row * kActualStride + column)];
  }

  std::vector<float> expected_, actual_;
};

using Flags = std::vector<uint32_t>;

TEST_F(AttentionCheckTest, SeesEachPlace) {
  Fill(1);
  EXPECT_EQ(Check(), (Flags{0, 1, 0}));
  for (const int64_t row : {int64_t{0}, int64_t{33}, kRows - 1}) {
    for (const int64_t column : {int64_t{0}, int64_t{31}, kColumns - 1}) {
      Fill(1);
      Actual(row, column) += 0.04f;  // relative to a largest magnitude of 5
      EXPECT_EQ(Check(), (Flags{0, 1, 0})) << row << ", " << column;
      Actual(row, column) += 0.02f;
      EXPECT_EQ(Check(), (Flags{1, 1, 0})) << row << ", " << column;
    }
  }
}

TEST_F(AttentionCheckTest, SaysWhereThereIsNothingToCompare) {
  Fill(0);
  EXPECT_EQ(Check(), (Flags{0, 0, 0}));
  Actual(3, 3) = 1;
  EXPECT_EQ(Check(), (Flags{1, 0, 0}));
  Fill(1);
  Actual(5, 6) = std::nanf("");
  EXPECT_EQ(Check(), (Flags{0, 1, 1}));
  Fill(1);
  expected_[17] = INFINITY;
  EXPECT_EQ(Check(), (Flags{0, 1, 1}));
}

}  // namespace
}  // namespace tercio::kernels::cuda
