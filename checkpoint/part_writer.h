// The file that one rank adds to a checkpoint, as it is written: by the rank itself on a shared
// file system, or by the coordinator from what the rank sends. Either way one safetensors file of
// the rank's slices, with one digest of the whole file and one for each block.
//
// Threads: one at a time; written_bytes from any.
// Errors: as of common/file.h (RESOURCE_EXHAUSTED: the disk is full); INVALID_ARGUMENT: invalid
// slices, or more bytes than they have.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/block_digests.h"
#include "checkpoint/manifest.h"
#include "checkpoint/rank_file.h"
#include "common/append_file.h"
#include "common/checksum.h"
#include "proto/tercio/v1/checkpoint_service.pb.h"

namespace tercio::checkpoint {

using Slices = google::protobuf::RepeatedPtrField<v1::TensorSlice>;

class PartWriter {
 public:
  // Makes the directories above `path` that are missing. The file must not be there.
  static absl::StatusOr<std::unique_ptr<PartWriter>> Create(std::string path, const Slices& slices);
  // A file that was not closed is removed.
  ~PartWriter();
  PartWriter(const PartWriter&) = delete;
  PartWriter& operator=(const PartWriter&) = delete;

  // The bytes of the slices, in their order, row-major each.
  absl::Status Append(std::string_view bytes);
  // Waits until the disk has the file, and its name. DATA_LOSS when bytes are missing. Called once,
  // last.
  absl::StatusOr<v1::UploadEnd> Close();

  int64_t written_bytes() const { return appended_bytes_; }

 private:
  PartWriter(std::string path, const RankFile& file);

  const std::string path_;
  const int64_t expected_bytes_;  // size of the slices
  std::unique_ptr<AppendFile> file_;
  std::atomic<int64_t> appended_bytes_ = 0;
  Checksum checksum_;  // checksum of the file
  BlockDigests blocks_;
  bool closed_ = false;
};

// The part of a manifest that a file of these slices adds under the name `name`.
// INVALID_ARGUMENT: `end` does not describe such a file.
absl::StatusOr<Manifest> PartOfManifest(const std::string& name, const Slices& slices,
                                        const v1::UploadEnd& end);

}  // namespace tercio::checkpoint
