// The safetensors file that the slices of one rank make: what its trainer streams and the
// coordinator's store writes. Both derive the header from the slices, so that one digest, of the
// whole file, serves the transfer and the manifest. Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/safetensors.h"
#include "proto/tercio/v1/checkpoint_service.pb.h"

namespace tercio::checkpoint {

struct RankFile {
  std::string header;                // the bytes of the slices follow it
  std::vector<TensorEntry> entries;  // one for each slice, in order
  // Bytes of the slices.
  int64_t data_bytes() const { return entries.empty() ? 0 : entries.back().end; }
};

// INVALID_ARGUMENT names a slice that is invalid, lies outside its tensor, or makes the file larger
// than any file can be.
absl::StatusOr<RankFile> RankFileOf(
    const google::protobuf::RepeatedPtrField<v1::TensorSlice>& slices);

}  // namespace tercio::checkpoint
