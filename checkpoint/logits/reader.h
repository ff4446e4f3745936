// Stored logits, memory-mapped: of each predicted row of a job's samples the largest logits of a
// teacher. Takes memory for the sizes of its files, and not for their content, which the system
// reads page by page.
//
// Threads: const methods from any thread.
// Errors: those of header.h; DATA_LOSS for a file that is missing, truncated, or not the one that
// the header names.
// Failure: a file that is truncated while it is mapped ends the process (SIGBUS).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/logits/header.h"
#include "checkpoint/weight_source.h"
#include "common/file.h"

namespace tercio::checkpoint {

class StoredLogits {
 public:
  // Sizes are always compared; with kEveryByte also the digests of all files, and all ids with the
  // vocabulary, once on each node for each attempt.
  static absl::StatusOr<std::unique_ptr<const StoredLogits>> Open(const std::string& directory,
                                                                  DigestCheck check);

  const LogitsHeader& header() const { return header_; }

  // Rows of a sample. REQUIRES: 0 <= sample < subject.sample_count().
  int64_t RowsOf(int64_t sample) const;
  // The rows of a sample, k elements each, the largest logit first. REQUIRES: as RowsOf.
  void Read(int64_t sample, std::vector<int32_t>* ids, std::vector<float>* logits) const;

 private:
  // Begins of a shard's tensors in its file.
  struct Shard {
    std::shared_ptr<const MappedFile> file;
    int64_t first_sample = 0;
    const char* rows = nullptr;    // I64 (samples + 1): the first row of each sample
    const char* logits = nullptr;  // F32 (rows, k)
    const char* ids = nullptr;     // U16 or I32 (rows, k)
  };
  struct Range {
    const Shard* shard;
    int64_t begin;
    int64_t end;
  };

  explicit StoredLogits(LogitsHeader header) : header_(std::move(header)) {}
  absl::Status Add(const std::string& directory, const LogitsShard& expected, DigestCheck check);
  absl::Status CheckRows(const std::string& path, const LogitsShard& expected,
                         const Shard& shard) const;
  absl::Status CheckIds(const std::string& path, const LogitsShard& expected,
                        const Shard& shard) const;
  int32_t IdAt(const Shard& shard, int64_t place) const;
  Range RangeOf(int64_t sample) const;

  const LogitsHeader header_;
  std::vector<Shard> shards_;
};

// The tensors of a shard: their names.
inline constexpr char kRowsOfLogits[] = "rows";
inline constexpr char kLogitsOfRows[] = "logits";
inline constexpr char kIdsOfLogits[] = "ids";

}  // namespace tercio::checkpoint
