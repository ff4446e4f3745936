#include "checkpoint/quantized_tensor.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "kernels/quantized_base.h"
#include "plan/model_tensors.h"

namespace tercio::checkpoint {
namespace {

constexpr int64_t kPartOfRows = int64_t{1} << 20;  // elements that are dequantised at a time

// Whole blocks of some rows.
struct BlockRows {
  int64_t row_begin, row_end;
  int64_t begin, end;  // blocks of a row

  int64_t count() const { return (row_end - row_begin) * (end - begin); }
};

struct Matrix {
  std::string name;
  int64_t rows, columns;
  kernels::BaseFormat format;
  std::vector<float> groups;

  int64_t blocks_of_row() const { return columns / kernels::kBaseBlock; }
};

v1::TensorSlice SliceOf(const std::string& tensor, const Matrix& matrix, const BlockRows& part,
                        int64_t of_block) {
  v1::TensorSlice slice;
  slice.set_tensor(tensor);
  slice.add_shape(matrix.rows);
  slice.add_shape(matrix.blocks_of_row() * of_block);
  slice.set_row_begin(part.row_begin);
  slice.set_row_end(part.row_end);
  slice.set_column_begin(part.begin * of_block);
  slice.set_column_end(part.end * of_block);
  slice.set_dtype("F32");
  return slice;
}

absl::Status ReadGroups(const WeightSource& source, Matrix* matrix) {
  const int64_t count = 1 + kernels::GroupsOf(matrix->rows * matrix->blocks_of_row());
  v1::TensorSlice slice;
  slice.set_tensor(absl::StrCat(plan::kBaseGroups, matrix->name));
  slice.add_shape(count);
  slice.set_row_end(count);
  slice.set_column_end(1);
  slice.set_dtype("F32");
  matrix->groups.resize(static_cast<size_t>(count));
  return source.ReadSlice(slice, matrix->groups.data());
}

// The scale of each block of the part.
absl::StatusOr<std::vector<float>> ReadScales(const WeightSource& source, const Matrix& matrix,
                                              const BlockRows& part) {
  std::vector<float> scales(static_cast<size_t>(part.count()));
  TERCIO_RETURN_IF_ERROR(source.ReadSlice(
      SliceOf(absl::StrCat(plan::kBaseScales, matrix.name), matrix, part, 1), scales.data()));
  size_t i = 0;
  for (int64_t row = part.row_begin; row < part.row_end; ++row) {
    for (int64_t block = part.begin; block < part.end; ++block, ++i) {
      if (!(scales[i] >= 0 && scales[i] <= 255)) {
        return absl::DataLossError(
            absl::StrCat("tensor ", plan::kBaseScales, matrix.name, " does not hold codes"));
      }
      const int64_t number = row * matrix.blocks_of_row() + block;
      const float largest =
          matrix.groups[static_cast<size_t>(1 + number / kernels::kScalesOfGroup)];
      scales[i] = kernels::ScaleOfCode(static_cast<uint8_t>(scales[i]), matrix.groups[0], largest);
    }
  }
  return scales;
}

absl::StatusOr<std::vector<float>> ReadBlocks(const WeightSource& source, const Matrix& matrix,
                                              const BlockRows& part) {
  const int64_t of_block =
      kernels::CodesBytes(matrix.format, kernels::kBaseBlock) / static_cast<int64_t>(sizeof(float));
  // Floats hold bytes as they are.
  std::vector<float> codes(static_cast<size_t>(part.count() * of_block));
  TERCIO_RETURN_IF_ERROR(source.ReadSlice(
      SliceOf(absl::StrCat(plan::kBaseCodes, matrix.name), matrix, part, of_block), codes.data()));
  TERCIO_ASSIGN_OR_RETURN(const std::vector<float> scales, ReadScales(source, matrix, part));
  std::vector<float> values(static_cast<size_t>(part.count() * kernels::kBaseBlock));
  kernels::DequantizeBase(matrix.format, reinterpret_cast<const std::byte*>(codes.data()), scales,
                          values.data());
  return values;
}

}  // namespace

bool HasCodes(const WeightSource& source, const std::string& tensor) {
  return source.Has(absl::StrCat(plan::kBaseCodes, tensor));
}

absl::Status ReadDequantized(const WeightSource& source, const v1::TensorSlice& slice,
                             int64_t stored_columns, float* out) {
  if (slice.shape_size() != 2 || slice.shape(1) % kernels::kBaseBlock != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor ", slice.tensor(), " has a different shape than in the model"));
  }
  Matrix matrix = {.name = slice.tensor(),
                   .rows = slice.shape(0),
                   .columns = slice.shape(1),
                   .format = slice.shape(1) / stored_columns == 8 ? kernels::BaseFormat::kNf4
                                                                  : kernels::BaseFormat::kInt8,
                   .groups = {}};
  TERCIO_RETURN_IF_ERROR(ReadGroups(source, &matrix));
  BlockRows part = {.row_begin = 0,
                    .row_end = 0,
                    .begin = slice.column_begin() / kernels::kBaseBlock,
                    .end = (slice.column_end() + kernels::kBaseBlock - 1) / kernels::kBaseBlock};
  const int64_t width = (part.end - part.begin) * kernels::kBaseBlock;
  const int64_t skipped = slice.column_begin() - part.begin * kernels::kBaseBlock;
  const int64_t columns = slice.column_end() - slice.column_begin();
  if (columns == 0) return absl::OkStatus();
  const int64_t height = std::max<int64_t>(1, kPartOfRows / width);
  for (int64_t row = slice.row_begin(); row < slice.row_end(); row += height) {
    part.row_begin = row;
    part.row_end = std::min(slice.row_end(), row + height);
    TERCIO_ASSIGN_OR_RETURN(const std::vector<float> values, ReadBlocks(source, matrix, part));
    for (int64_t i = 0; i < part.row_end - part.row_begin; ++i, out += columns) {
      std::copy_n(values.data() + i * width + skipped, columns, out);
    }
  }
  return absl::OkStatus();
}

}  // namespace tercio::checkpoint
