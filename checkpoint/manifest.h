// The manifest of a checkpoint: which logical tensors there are, and in which file the pieces of
// each lie. It knows no layout: a piece is a rectangle of the tensor's matrix view. JSON,
// docs/formats.md. It ends with a digest of itself, so that an edited one is found.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tercio::checkpoint {

// Rows [row_begin, row_end) and columns [column_begin, column_end), row-major at `offset` bytes of
// `file`.
struct Piece {
  std::string file;
  int64_t offset = 0;
  int64_t row_begin = 0;
  int64_t row_end = 0;
  int64_t column_begin = 0;
  int64_t column_end = 0;
  // 16 bytes for each block of kBlockBytes, the last one may be shorter (block_digests.h); empty:
  // of a checkpoint that has none (version 2, or imported).
  std::string block_digests;

  int64_t bytes() const {
    return (row_end - row_begin) * (column_end - column_begin) *
           static_cast<int64_t>(sizeof(float));
  }
};

struct ManifestTensor {
  std::vector<int64_t> shape;
  std::string dtype = "F32";
  std::vector<Piece> pieces;
};

struct ManifestFile {
  int64_t bytes = 0;
  std::string checksum;  // common/checksum.h
};

struct Manifest {
  std::string job;
  int64_t step = 0;
  int32_t attempt = 0;
  std::string model_json;  // v1::ModelSpec
  std::string
      training_state_json;     // step, tokens, seed, lanes, next_sample, numerics, state_digest
  std::string tokenizer_file;  // one of `files`; empty: none
  std::map<std::string, ManifestTensor> tensors;
  std::map<std::string, ManifestFile> files;
};

// `model_json` and `training_state_json` are checked before (CheckTrainingState).
std::string ManifestToJson(const Manifest& manifest);
// The digest that ManifestToJson put into it; empty: it has none (version 2).
std::string DigestOfManifest(const std::string& json);
// Reads version 3 and 2. DATA_LOSS when it is not a manifest, was changed after it was written, or
// a tensor's pieces do not cover it exactly once; FAILED_PRECONDITION when a newer program wrote
// it.
absl::StatusOr<Manifest> ManifestFromJson(const std::string& json);

// The numerics of the training state (plan/numerics.h), or 1 where it was not recorded.
int NumericsOf(const Manifest& manifest);

// The digest of weights and moments in the training state (plan/state_digest.h). nullopt: an older
// version wrote the checkpoint, or it was imported.
std::optional<uint64_t> StateDigestOf(const Manifest& manifest);

// Whether a training state that was received is one: a JSON object, not large, not deep.
// INVALID_ARGUMENT names the fault.
absl::Status CheckTrainingState(const std::string& json);

// DATA_LOSS names the first tensor whose pieces do not tile it.
absl::Status CheckCoverage(const Manifest& manifest);

}  // namespace tercio::checkpoint
