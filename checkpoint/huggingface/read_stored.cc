#include "checkpoint/huggingface/read_stored.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "checkpoint/transpose.h"
#include "common/status_macros.h"

namespace tercio::checkpoint {
namespace {

// A block of fp32 takes 4 KiB, and stays in the nearest cache.
constexpr int64_t kBlockRows = 64;
constexpr int64_t kBlockColumns = 16;

absl::Status CheckWeightSlice(const v1::TensorSlice& slice, const std::vector<int64_t>& shape,
                              const std::string& directory) {
  // Slices are checked before any address is computed from them.
  if (!std::equal(shape.begin(), shape.end(), slice.shape().begin(), slice.shape().end())) {
    return absl::InvalidArgumentError(absl::StrCat(directory, ": tensor ", slice.tensor(), " has ",
                                                   "[", absl::StrJoin(shape, ", "), "]",
                                                   ", but a different shape was requested"));
  }
  const int64_t columns = shape.size() == 2 ? shape[1] : 1;
  if (slice.row_begin() < 0 || slice.row_begin() > slice.row_end() || slice.row_end() > shape[0] ||
      slice.column_begin() < 0 || slice.column_begin() > slice.column_end() ||
      slice.column_end() > columns) {
    return absl::InvalidArgumentError(absl::StrCat("slice outside of tensor ", slice.tensor()));
  }
  return absl::OkStatus();
}

// A block at a time becomes fp32 where it stays in the cache.
void ReadTransposed(const StoredPlace& place, const v1::TensorSlice& slice, float* out) {
  float block[kBlockColumns * kBlockRows];
  const int64_t width = slice.column_end() - slice.column_begin();
  const int64_t bytes = BytesOf(place.format);
  for (int64_t row = slice.row_begin(); row < slice.row_end(); row += kBlockRows) {
    const int64_t rows = std::min(kBlockRows, slice.row_end() - row);
    for (int64_t column = 0; column < width; column += kBlockColumns) {
      const int64_t columns = std::min(kBlockColumns, width - column);
      for (int64_t i = 0; i < columns; ++i) {
        // The matrix is stored with a row for each input, and `place` begins at one of its outputs.
        const int64_t at =
            (slice.column_begin() + column + i) * place.outputs + place.part.begin + row;
        WidenFloats(place.format, place.data + at * bytes, rows, block + i * kBlockRows);
      }
      Transpose(block, columns, rows, kBlockRows, out + (row - slice.row_begin()) * width + column,
                width);
    }
  }
}

void ReadRuns(const StoredPlace& place, const v1::TensorSlice& slice, float* out) {
  const int64_t width = slice.column_end() - slice.column_begin();
  const int64_t bytes = BytesOf(place.format);
  // Whole rows lie one after the other within a run, and need one call instead of one each.
  const int64_t most = width == place.inputs ? place.part.run : 1;
  for (int64_t row = slice.row_begin(); row < slice.row_end();) {
    const int64_t rows =
        std::min(std::min(most, slice.row_end() - row), place.part.run - row % place.part.run);
    const int64_t at = place.part.OutputOf(row) * place.inputs + slice.column_begin();
    WidenFloats(place.format, place.data + at * bytes, rows * width, out);
    out += rows * width;
    row += rows;
  }
}

}  // namespace

absl::Status ReadStored(const StoredPlace& place, const v1::TensorSlice& slice,
                        const std::string& directory, float* out) {
  // The shape is that of the canonical tensor, which may be a part of the stored one.
  std::vector<int64_t> shape = {place.part.rows};
  if (!place.is_vector) shape.push_back(place.inputs);
  TERCIO_RETURN_IF_ERROR(CheckWeightSlice(slice, shape, directory));
  if (place.transposed) {
    ReadTransposed(place, slice, out);
  } else {
    ReadRuns(place, slice, out);
  }
  return absl::OkStatus();
}

}  // namespace tercio::checkpoint
