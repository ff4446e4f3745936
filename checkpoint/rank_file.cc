#include "checkpoint/rank_file.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace tercio::checkpoint {
namespace {

absl::Status CheckSlice(const v1::TensorSlice& slice) {
  const int64_t columns = slice.shape_size() == 2 ? slice.shape(1) : 1;
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
  for (const v1::TensorSlice& slice : slices) {
    TERCIO_RETURN_IF_ERROR(CheckSlice(slice));
    TensorEntry entry;
    entry.name = slice.tensor();
    entry.shape.push_back(slice.row_end() - slice.row_begin());
    if (slice.shape_size() == 2) {
      entry.shape.push_back(slice.column_end() - slice.column_begin());
    }
    file.entries.push_back(std::move(entry));
  }
  file.header = SafetensorsHeader(&file.entries);
  return file;
}

}  // namespace tercio::checkpoint
