#include "checkpoint/transpose.h"

#include <vector>

#include "gtest/gtest.h"

namespace tercio::checkpoint {
namespace {

TEST(Transpose, MovesEveryValueAndNothingElse) {
  for (const int64_t rows : {0, 1, 3, 4, 15, 16, 17, 33, 64}) {
    for (const int64_t columns : {0, 1, 4, 5, 16, 31, 48, 50}) {
      const int64_t from_stride = columns + 3;
      const int64_t to_stride = rows + 5;
      std::vector<float> from(static_cast<size_t>(rows * from_stride + 1));
      for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<float>(i + 1);
      std::vector<float> to(static_cast<size_t>(columns * to_stride + 1), -1.0f);
      Transpose(from.data(), rows, columns, from_stride, to.data(), to_stride);
      for (int64_t i = 0; i < static_cast<int64_t>(to.size()); ++i) {
        const int64_t row = i % to_stride;
        const int64_t column = i / to_stride;
        const bool inside = row < rows && column < columns;
        EXPECT_EQ(to[static_cast<size_t>(i)],
                  inside ? from[static_cast<size_t>(row * from_stride + column)] : -1.0f)
            << rows << " x " << columns << " at " << i;
      }
    }
  }
}

}  // namespace
}  // namespace tercio::checkpoint
