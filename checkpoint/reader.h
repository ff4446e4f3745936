// Reads a committed checkpoint: any rectangle of any logical tensor, whatever layout wrote it.
//
// All reads are verified: each block that a slice touches is compared with its digest before any of
// it is returned. Files are read by pread, never mapped: a file that shrinks, or a disk that
// fails, is an error, not a signal.
//
// Threads: const methods from any thread; a SliceCursor by one at a time.
// Errors: NOT_FOUND when there is no checkpoint; DATA_LOSS when it is damaged beyond doubt (a file
// is missing or has another size, a digest differs); FAILED_PRECONDITION when a newer program wrote
// it; anything else may be transient (permission, I/O, out of memory). Each names the file.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "checkpoint/manifest.h"
#include "checkpoint/weight_source.h"
#include "common/read_file.h"
#include "proto/tercio/v1/checkpoint_service.pb.h"
#include "proto/tercio/v1/job.pb.h"

namespace tercio::checkpoint {

struct Finding {
  std::string path;
  std::string problem;   // empty: good
  bool damaged = false;  // proven, as opposed to a transient error
};

// Reads one file of a checkpoint and compares its size and digest. DATA_LOSS: it is damaged.
absl::Status VerifyFile(const std::string& path, const ManifestFile& expected);

// Reads everything and compares every digest, that of the trainers' state (plan/state_digest.h)
// with the manifest, too; one finding per file.
std::vector<Finding> VerifyCheckpoint(const std::string& directory);

class SliceCursor;

class Reader : public WeightSource {
 public:
  // Checks the manifest, and that every file is there with its full size; with
  // DigestCheck::kEveryByte also their content.
  static absl::StatusOr<std::unique_ptr<Reader>> Open(const std::string& directory,
                                                      DigestCheck check);

  // Compares the content of every file, on all cores. DATA_LOSS names the first that differs.
  absl::Status CheckDigests() const;

  const Manifest& manifest() const { return manifest_; }
  // The manifest's own digest; empty: a version that has none.
  const std::string& manifest_digest() const { return manifest_digest_; }
  const v1::ModelSpec& model() const override { return model_; }
  absl::StatusOr<std::string> TokenizerJson() const override;
  // Also a tensor of which there are codes (checkpoint/quantized_tensor.h): its values are read.
  bool Has(const std::string& tensor) const override;

  // NOT_FOUND when the tensor is missing, INVALID_ARGUMENT when it has another shape or the slice
  // lies outside of it.
  absl::Status CheckSlice(const v1::TensorSlice& slice) const;
  // Writes the slice's values row-major; the same errors.
  absl::Status ReadSlice(const v1::TensorSlice& slice, float* out) const override;
  // Bytes read from the files by all calls together.
  int64_t bytes_read() const { return bytes_read_; }

 private:
  friend class SliceCursor;

  std::string directory_;
  Manifest manifest_;
  std::string manifest_digest_;
  v1::ModelSpec model_;
  std::map<std::string, std::unique_ptr<const RandomAccessFile>> files_;
  mutable std::atomic<int64_t> bytes_read_ = 0;
};

// A block that was read and not compared with its digest yet. Valid as long as its reader and the
// memory that it was read to.
struct UnverifiedBlock {
  absl::Span<const char> bytes;
  std::string_view digest;  // empty: the manifest has none
  const RandomAccessFile* file = nullptr;
  int64_t offset = 0;     // in the file
  bool last_use = false;  // these bytes of the file are not needed again
};
// DATA_LOSS: it has another digest. Also lets the kernel drop pages that are not needed again, to
// save the reading thread that work.
absl::Status Verify(const UnverifiedBlock& block);

// Reads slices in parts, one after the other (DivideSlice): keeps of each piece of a tensor the
// block that it has read last, so that neighbouring parts read and verify no block twice. Memory:
// one block for each piece of the tensor that has most; it is used again for the next tensor.
class SliceCursor {
 public:
  // The reader must outlive it.
  explicit SliceCursor(const Reader& reader) : reader_(reader) {}

  // As Reader::ReadSlice. When it fails, the contents of `out` are undefined.
  absl::Status Read(const v1::TensorSlice& part, float* out);
  // Leaves blocks that lie in `out` as a whole for the caller to verify: appends them to
  // *unverified.
  absl::Status Read(const v1::TensorSlice& part, float* out,
                    std::vector<UnverifiedBlock>* unverified);

 private:
  struct Block {
    int64_t number = -1;
    std::vector<char> bytes;
  };

  using Unverified = std::vector<UnverifiedBlock>;

  absl::Status ReadPiece(const Piece& piece, const v1::TensorSlice& part, Block* cache, float* out,
                         Unverified* unverified);
  absl::StatusOr<UnverifiedBlock> Load(const Piece& piece, int64_t number,
                                       absl::Span<char> block) const;
  absl::Status Copy(const Piece& piece, int64_t begin, int64_t bytes, bool last_use, Block* cache,
                    char* out, Unverified* unverified) const;

  const Reader& reader_;
  std::string tensor_;
  std::vector<Block> blocks_;  // by piece of that tensor, and what earlier ones left
};

}  // namespace tercio::checkpoint
