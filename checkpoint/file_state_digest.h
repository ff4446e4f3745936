// The part of the digest of the state (plan/state_digest.h) that lies in one file of a checkpoint,
// summed up while the file is read through.
//
// Threads: one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "checkpoint/manifest.h"

namespace tercio::checkpoint {

class FileStateDigest {
 public:
  // `file`: one of those that the manifest names; the manifest outlives the object.
  FileStateDigest(const Manifest& manifest, const std::string& file);

  // The bytes of the file from `at` on, a multiple of 4.
  void Update(int64_t at, absl::Span<const char> bytes);
  // REQUIRES: the whole file was given. nullopt: its values are not aligned.
  std::optional<uint64_t> sum() const { return is_complete_ ? std::optional(sum_) : std::nullopt; }

 private:
  struct Part {
    const Piece* piece;
    int64_t columns;  // columns of the whole tensor
    uint64_t factor;
  };
  // Values [begin, begin + count) of a piece.
  void AddValues(const Part& part, int64_t begin, int64_t count, const char* bytes);

  std::vector<Part> parts_;
  std::vector<float> values_;
  uint64_t sum_ = 0;
  bool is_complete_ = true;
};

}  // namespace tercio::checkpoint
