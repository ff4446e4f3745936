#include "checkpoint/rank_file.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace tercio::checkpoint {
namespace {

// Slices come from outside: their sizes are bounded before they are multiplied and added up, so
// that no sum of bytes leaves int64. No disk holds 2^60 bytes.
constexpr int64_t kMostElements = int64_t{1} << 58;

absl::Status CheckSlice(const v1::TensorSlice& slice) {
  const int64_t columns = slice.shape_size() == 2 ? slice.shape(1) : 1;
  // Slices arrive over the network, and all sizes of the file follow from them.
  if (slice.shape_size() < 1 || slice.shape_size() > 2 || slice.dtype() != "F32" ||
      slice.row_begin() < 0 || slice.row_begin() >= slice.row_end() ||
      slice.row_end() > slice.shape(0) || slice.column_begin() < 0 ||
      slice.column_begin() >= slice.column_end() || slice.column_end() > columns) {
    return absl::InvalidArgumentError(absl::StrCat("impossible slice of tensor ", slice.tensor()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<RankFile> RankFileOf(
    const google::protobuf::RepeatedPtrField<v1::TensorSlice>& slices) {
  RankFile file;
  int64_t free = kMostElements;
  for (const v1::TensorSlice& slice : slices) {
    TERCIO_RETURN_IF_ERROR(CheckSlice(slice));
    const int64_t rows = slice.row_end() - slice.row_begin();
    const int64_t columns = slice.column_end() - slice.column_begin();
    if (rows > free / columns) {
      return absl::InvalidArgumentError(
          absl::StrCat("the slices, up to tensor ", slice.tensor(),
                       ", have more elements than a file may hold (2^58)"));
    }
    free -= rows * columns;
    // The entry keeps its type, F32: CheckSlice lets no other pass.
    TensorEntry entry;
    entry.name = slice.tensor();
    entry.shape.push_back(rows);
    if (slice.shape_size() == 2) entry.shape.push_back(columns);
    file.entries.push_back(std::move(entry));
  }
  // Both sides derive the header from the same code, so its bytes need not be sent.
  file.header = SafetensorsHeader(&file.entries);
  return file;
}

}  // namespace tercio::checkpoint
