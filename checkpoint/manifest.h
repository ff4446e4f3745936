// The manifest of a checkpoint: which logical tensors there are, and in which file the pieces of
// each lie. It knows no layout: a piece is a rectangle of the tensor's matrix view. JSON,
// docs/formats.md.
#pragma once

#include <cstdint>
#include <map>
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
  std::string model_json;           // v1::ModelSpec
  std::string training_state_json;  // step, tokens, seed, lanes, next_sample
  std::map<std::string, ManifestTensor> tensors;
  std::map<std::string, ManifestFile> files;
};

std::string ManifestToJson(const Manifest& manifest);
// DATA_LOSS when it is not a manifest, or a tensor's pieces do not cover it exactly once.
absl::StatusOr<Manifest> ManifestFromJson(const std::string& json);

// DATA_LOSS names the first tensor whose pieces do not tile it.
absl::Status CheckCoverage(const Manifest& manifest);

}  // namespace tercio::checkpoint
