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

// The header (length included) of a file that holds these tensors one after the other; fills begin
// and end.
std::string SafetensorsHeader(std::vector<TensorEntry>* tensors);

struct SafetensorsLayout {
  int64_t data_begin = 0;  // of the first tensor, in the file
  std::vector<TensorEntry> tensors;
};

// `file` is the whole file or at least its header; `file_bytes` its size. INVALID_ARGUMENT says
// what is wrong.
absl::StatusOr<SafetensorsLayout> ParseSafetensors(std::string_view file, int64_t file_bytes);

}  // namespace tercio::checkpoint
