// The safetensors container: an 8-byte little-endian header length, a JSON header padded with
// spaces to a multiple of 8, then the tensors' bytes in order without gaps.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace tercio::checkpoint {

struct TensorEntry {
  std::string name;
  std::vector<int64_t> shape;
  std::string dtype = "F32";
  int64_t begin = 0;  // bytes, counted from the end of the header
  int64_t end = 0;
};

// Bytes of one element; 0 for a dtype that is not known.
int64_t DtypeBytes(std::string_view dtype);

// The header (length included) of a file that holds these tensors one after the other; fills begin
// and end. `format` becomes its metadata ("pt" for transformers); empty: none. REQUIRES: known
// dtypes.
std::string SafetensorsHeader(std::vector<TensorEntry>* tensors, std::string_view format = "");

struct SafetensorsLayout {
  int64_t data_begin = 0;  // begin of the first tensor, in the file
  std::vector<TensorEntry> tensors;
};

// `file` is the whole file or at least its header; `file_bytes` its size. INVALID_ARGUMENT says
// what is wrong: not a header, a dtype that is not known, a tensor whose shape and bytes disagree,
// tensors that do not fill the file without gaps and overlaps.
absl::StatusOr<SafetensorsLayout> ParseSafetensors(std::string_view file, int64_t file_bytes);

// The same for a header alone, of a file that holds its tensors' bytes and no more.
absl::StatusOr<SafetensorsLayout> ParseSafetensorsHeader(std::string_view header);

}  // namespace tercio::checkpoint
