#include "kernels/cuda/scratch.h"

#include "gtest/gtest.h"

namespace tercio::kernels::cuda {
namespace {

// Memory is planned for all rows of a micro-batch, and operations run on parts of them: 4,104 rows
// are 456 blocks of 9, and the first 4,096 of them 512 blocks of 8.
TEST(Scratch, IsEnoughForAnyPartOfTheRows) {
  constexpr int64_t kColumns = 3;
  for (const int64_t least : {kLeastRowsOfNorm, kLeastRowsOfSum}) {
    int64_t most = 0;  // blocks at most, up to here
    for (int64_t rows = 0; rows <= 40'000; ++rows) {
      most = std::max(most, CutRows(rows, least).blocks);
      const int64_t bytes = least == kLeastRowsOfNorm ? NormBackwardBytes(rows, kColumns)
                                                      : ColumnSumBytes(rows, kColumns);
      const int64_t of_block = least == kLeastRowsOfNorm ? 8 : 4;
      ASSERT_EQ(bytes, most * kColumns * of_block) << rows << " rows, at least " << least;
    }
  }
}

}  // namespace
}  // namespace tercio::kernels::cuda
