// Every element is in exactly one part, and groups are aligned in both buffers.
#include "kernels/cuda/primitives/split.h"

#include "gtest/gtest.h"

namespace tercio::kernels::cuda {
namespace {

Operand At(int64_t element, int64_t element_bytes) {
  return {reinterpret_cast<const void*>(1024 + element * element_bytes), element_bytes};
}

TEST(Split, GroupsAreAlignedInBothBuffers) {
  for (const int64_t second_bytes : {2, 4}) {
    const int64_t width = 16 / second_bytes;
    for (int64_t a = 0; a < 9; ++a) {
      for (int64_t b = 0; b < 9; ++b) {
        for (const int64_t count : {0, 1, 3, 7, 8, 9, 16, 100, 4097}) {
          const Split split = SplitForGroups(count, width, At(a, 4), At(b, second_bytes));
          ASSERT_EQ(split.count, count);
          ASSERT_GE(split.head, 0);
          ASSERT_LE(split.head + split.groups * width, count);
          if (split.groups == 0) continue;
          EXPECT_EQ((a + split.head) * 4 % 16, 0);
          EXPECT_EQ((b + split.head) * second_bytes % 16, 0);
          EXPECT_LT(count - split.head - split.groups * width, width);
        }
      }
    }
  }
}

TEST(Split, TakesGroupsWhereverTheyAreAligned) {
  EXPECT_EQ(SplitForGroups(100, 4, At(0, 4), At(0, 4)).groups, 25);
  EXPECT_EQ(SplitForGroups(100, 4, At(1, 4), At(1, 4)).head, 3);
  EXPECT_EQ(SplitForGroups(100, 4, At(1, 4), At(1, 4)).groups, 24);
  EXPECT_EQ(SplitForGroups(100, 4, At(1, 4), At(2, 4)).groups, 0);
  EXPECT_EQ(SplitForGroups(100, 8, At(4, 4), At(0, 2)).groups, 12);
}

}  // namespace
}  // namespace tercio::kernels::cuda
