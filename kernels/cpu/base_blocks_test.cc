// Ops::DequantizeBlocks on CPUs: the values of kernels/quantized_base.h, rounded; those of a part
// that is cut by rows and columns are those of the whole matrix.
#include <bit>
#include <cstring>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/quantized_base.h"

namespace tercio::kernels {
namespace {

constexpr int64_t kRows = 37;
constexpr int64_t kColumns = 640;
constexpr int64_t kOfRow = kColumns / kBaseBlock;

// A quantised matrix as one rank holds it.
struct Matrix {
  BaseFormat format;
  std::vector<std::byte> codes;
  std::vector<std::byte> scales;
  std::vector<float> groups;
};

Matrix MakeMatrix(BaseFormat format) {
  std::mt19937_64 random(20261128);
  std::normal_distribution<float> normal(0, 0.02f);
  std::vector<float> values(kRows * kColumns);
  for (float& value : values) value = normal(random);
  Matrix made{format, {}, {}, {}};
  made.codes.resize(static_cast<size_t>(CodesBytes(format, kRows * kColumns)));
  std::vector<float> scales(kRows * kOfRow);
  EXPECT_TRUE(QuantizeBase(format, values, made.codes.data(), scales.data()));
  const ScaleGroups groups = GroupsOfScales(scales);
  made.groups = {groups.mean};
  made.groups.insert(made.groups.end(), groups.largest.begin(), groups.largest.end());
  for (size_t i = 0; i < scales.size(); ++i) {
    made.scales.push_back(static_cast<std::byte>(
        CodeOfScale(scales[i], groups.mean, groups.largest[i / kScalesOfGroup])));
  }
  return made;
}

std::vector<float> Dequantize(const Matrix& matrix, Format format, int threads) {
  std::vector<float> to(kRows * kColumns + 1, 77.0f);
  CreateCpuOps(threads)->DequantizeBlocks({.to = Values(to.data(), format),
                                           .codes = matrix.codes.data(),
                                           .scales = matrix.scales.data(),
                                           .groups = matrix.groups.data(),
                                           .rows = kRows,
                                           .columns = kColumns,
                                           .first = 0,
                                           .stride = kOfRow,
                                           .format = matrix.format});
  EXPECT_EQ(to.back(), 77.0f) << "written behind the end";
  to.pop_back();
  return to;
}

class BaseBlocks : public ::testing::TestWithParam<BaseFormat> {};
INSTANTIATE_TEST_SUITE_P(Formats, BaseBlocks,
                         ::testing::Values(BaseFormat::kNf4, BaseFormat::kInt8));

TEST_P(BaseBlocks, AreTheValuesOfTheDefinition) {
  const Matrix matrix = MakeMatrix(GetParam());
  std::vector<float> scales;
  for (size_t i = 0; i < matrix.scales.size(); ++i) {
    scales.push_back(ScaleOfCode(static_cast<uint8_t>(matrix.scales[i]), matrix.groups[0],
                                 matrix.groups[1 + i / kScalesOfGroup]));
  }
  std::vector<float> expected(kRows * kColumns);
  DequantizeBase(GetParam(), matrix.codes.data(), scales, expected.data());
  EXPECT_EQ(Dequantize(matrix, Format::kFloat32, 1), expected);
  for (const Format format : {Format::kBfloat16, Format::kFloat16}) {
    std::vector<float> rounded = expected;
    CreateCpuOps(1)->Copy(Values(rounded.data(), format), ConstValues(expected.data()),
                          kRows * kColumns);
    EXPECT_EQ(Dequantize(matrix, format, 2), rounded);
  }
}

// Columns [128, 384) of rows [5, 30).
TEST_P(BaseBlocks, OfAPartAreThoseOfTheWhole) {
  constexpr int64_t kFirstRow = 5, kPartRows = 25, kFirstBlock = 2, kPartBlocks = 4;
  const Matrix whole = MakeMatrix(GetParam());
  Matrix part{GetParam(), {}, {}, whole.groups};
  const int64_t of_block = CodesBytes(GetParam(), kBaseBlock);
  for (int64_t row = kFirstRow; row < kFirstRow + kPartRows; ++row) {
    const int64_t block = row * kOfRow + kFirstBlock;
    const auto codes = whole.codes.begin() + block * of_block;
    part.codes.insert(part.codes.end(), codes, codes + kPartBlocks * of_block);
    const auto scales = whole.scales.begin() + block;
    part.scales.insert(part.scales.end(), scales, scales + kPartBlocks);
  }
  constexpr int64_t kWidth = kPartBlocks * kBaseBlock;
  std::vector<float> values(kPartRows * kWidth);
  CreateCpuOps(2)->DequantizeBlocks({.to = values.data(),
                                     .codes = part.codes.data(),
                                     .scales = part.scales.data(),
                                     .groups = part.groups.data(),
                                     .rows = kPartRows,
                                     .columns = kWidth,
                                     .first = kFirstRow * kOfRow + kFirstBlock,
                                     .stride = kOfRow,
                                     .format = GetParam()});
  const std::vector<float> all = Dequantize(whole, Format::kFloat32, 1);
  for (int64_t row = 0; row < kPartRows; ++row) {
    const float* expected = all.data() + (kFirstRow + row) * kColumns + kFirstBlock * kBaseBlock;
    EXPECT_EQ(std::memcmp(values.data() + row * kWidth, expected, kWidth * sizeof(float)), 0)
        << row;
  }
}

}  // namespace
}  // namespace tercio::kernels
