// Slices of a matrix of which a source has codes: the values that these stand for, for slices that
// begin and end inside of blocks.
#include "checkpoint/quantized_tensor.h"

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/quantized_base.h"
#include "plan/model_tensors.h"

namespace tercio::checkpoint {
namespace {

constexpr int64_t kRows = 50;
constexpr int64_t kColumns = 384;

// Tensors in memory, of whole rows of `columns`.
class MemorySource : public WeightSource {
 public:
  struct Stored {
    int64_t columns;
    std::vector<float> values;
  };

  const v1::ModelSpec& model() const override { return model_; }
  absl::StatusOr<std::string> TokenizerJson() const override { return absl::NotFoundError(""); }
  bool Has(const std::string& tensor) const override { return tensors.contains(tensor); }
  absl::Status ReadSlice(const v1::TensorSlice& slice, float* out) const override {
    const auto found = tensors.find(slice.tensor());
    if (found == tensors.end()) return absl::NotFoundError(slice.tensor());
    const Stored& stored = found->second;
    EXPECT_EQ(slice.shape_size() > 1 ? slice.shape(1) : 1, stored.columns);
    for (int64_t row = slice.row_begin(); row < slice.row_end(); ++row) {
      const int64_t count = slice.column_end() - slice.column_begin();
      out = std::copy_n(stored.values.data() + row * stored.columns + slice.column_begin(), count,
                        out);
    }
    return absl::OkStatus();
  }

  std::map<std::string, Stored> tensors;

 private:
  v1::ModelSpec model_;
};

v1::TensorSlice Slice(int64_t row_begin, int64_t row_end, int64_t begin, int64_t end) {
  v1::TensorSlice slice;
  slice.set_tensor("up");
  slice.add_shape(kRows);
  slice.add_shape(kColumns);
  slice.set_row_begin(row_begin);
  slice.set_row_end(row_end);
  slice.set_column_begin(begin);
  slice.set_column_end(end);
  return slice;
}

// A source with the codes of a random matrix; `values`: what they stand for.
struct Quantized {
  MemorySource source;
  int64_t stored_columns;
  std::vector<float> values;
};

Quantized Quantize(kernels::BaseFormat format) {
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal(0, 0.02f);
  Quantized made;
  std::vector<float> values(kRows * kColumns);
  for (float& value : values) value = normal(random);
  made.stored_columns = kernels::CodesBytes(format, kColumns) / 4;
  std::vector<float> codes(static_cast<size_t>(kRows * made.stored_columns));
  std::vector<float> scales(values.size() / kernels::kBaseBlock);
  EXPECT_TRUE(kernels::QuantizeBase(format, values, reinterpret_cast<std::byte*>(codes.data()),
                                    scales.data()));
  const kernels::ScaleGroups groups = kernels::GroupsOfScales(scales);
  std::vector<float> stored;
  for (size_t i = 0; i < scales.size(); ++i) {
    const float largest = groups.largest[i / kernels::kScalesOfGroup];
    const uint8_t code = kernels::CodeOfScale(scales[i], groups.mean, largest);
    stored.push_back(code);
    scales[i] = kernels::ScaleOfCode(code, groups.mean, largest);
  }
  made.values.resize(values.size());
  kernels::DequantizeBase(format, reinterpret_cast<const std::byte*>(codes.data()), scales,
                          made.values.data());
  std::vector<float> numbers = {groups.mean};
  numbers.insert(numbers.end(), groups.largest.begin(), groups.largest.end());
  made.source.tensors[absl::StrCat(plan::kBaseCodes, "up")] = {made.stored_columns, codes};
  made.source.tensors[absl::StrCat(plan::kBaseScales, "up")] = {kColumns / kernels::kBaseBlock,
                                                                stored};
  made.source.tensors[absl::StrCat(plan::kBaseGroups, "up")] = {1, numbers};
  return made;
}

class QuantizedTensor : public ::testing::TestWithParam<kernels::BaseFormat> {};
INSTANTIATE_TEST_SUITE_P(Formats, QuantizedTensor,
                         ::testing::Values(kernels::BaseFormat::kNf4, kernels::BaseFormat::kInt8));

TEST_P(QuantizedTensor, HasTheValuesOfItsCodesInEverySlice) {
  const Quantized made = Quantize(GetParam());
  EXPECT_TRUE(HasCodes(made.source, "up"));
  EXPECT_FALSE(HasCodes(made.source, "down"));
  for (const v1::TensorSlice& slice :
       {Slice(0, kRows, 0, kColumns), Slice(3, 17, 64, 192), Slice(7, 8, 1, 2),
        Slice(49, 50, 100, 384), Slice(10, 40, 63, 65), Slice(5, 5, 0, 64), Slice(5, 9, 7, 7)}) {
    SCOPED_TRACE(slice.ShortDebugString());
    const int64_t width = slice.column_end() - slice.column_begin();
    const int64_t count = (slice.row_end() - slice.row_begin()) * width;
    std::vector<float> read(static_cast<size_t>(count) + 1, 77.0f);
    ASSERT_TRUE(ReadDequantized(made.source, slice, made.stored_columns, read.data()).ok());
    EXPECT_EQ(read.back(), 77.0f);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t at =
          (slice.row_begin() + i / width) * kColumns + slice.column_begin() + i % width;
      ASSERT_EQ(read[static_cast<size_t>(i)], made.values[static_cast<size_t>(at)]) << i;
    }
  }
}

TEST_P(QuantizedTensor, RefusesWhatDoesNotBelongToIt) {
  Quantized made = Quantize(GetParam());
  std::vector<float> read(kRows * kColumns);
  v1::TensorSlice other = Slice(0, 1, 0, 10);
  other.set_shape(1, 100);
  EXPECT_EQ(ReadDequantized(made.source, other, made.stored_columns, read.data()).code(),
            absl::StatusCode::kInvalidArgument);
  made.source.tensors[absl::StrCat(plan::kBaseScales, "up")].values[5] = 256;
  const absl::Status damaged =
      ReadDequantized(made.source, Slice(0, kRows, 0, kColumns), made.stored_columns, read.data());
  EXPECT_EQ(damaged.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(damaged.message()), ::testing::HasSubstr("training.base.scales.up"));
}

}  // namespace
}  // namespace tercio::checkpoint
