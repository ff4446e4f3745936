// Writes a directory of stored logits. It is DIRECTORY.partial until it is complete; one rename
// then makes it visible. A file gets its final name once it is durable, so an interrupted run
// resumes after its last complete file.
//
// Holds one file in memory: kShardBytes, or one sample, where that is larger.
//
// Threads: one at a time.
// Errors: FAILED_PRECONDITION when the place is taken, or cannot be written, or another process
// writes there; RESOURCE_EXHAUSTED with the path and the bytes when the disk is full.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "checkpoint/logits/header.h"
#include "common/file.h"

namespace tercio::checkpoint {

inline constexpr int64_t kShardBytes = int64_t{64} << 20;

// RESOURCE_EXHAUSTED: fewer bytes are free than logits in `directory` take.
absl::Status CheckRoom(const std::string& directory, int64_t needed_bytes, int64_t free_bytes);

// FAILED_PRECONDITION: `directory` exists.
absl::Status CheckIsNew(const std::string& directory);

class LogitsWriter {
 public:
  // `header` names no shards. Files left by an interrupted run with the same header are kept; files
  // left by a run with another header are removed. `shard_bytes` limits the rows in one file.
  static absl::StatusOr<std::unique_ptr<LogitsWriter>> Create(std::string directory,
                                                              LogitsHeader header,
                                                              int64_t shard_bytes = kShardBytes);

  // Samples that are there already: the next one has this number.
  int64_t samples() const { return samples_; }
  int64_t rows() const { return rows_; }
  // Whether logits of another header were removed.
  bool removed_others() const { return removed_others_; }
  // Samples that an interrupted run has left.
  int64_t resumed_samples() const { return resumed_samples_; }

  // The rows of the next sample, k elements each; none for a sample that predicts nothing.
  // REQUIRES: fewer than all samples were added; ids of the vocabulary.
  absl::Status Add(absl::Span<const int32_t> ids, absl::Span<const float> logits);

  // Makes the directory visible. REQUIRES: all samples were added. Called once, last.
  absl::Status Commit();

 private:
  LogitsWriter(std::string directory, LogitsHeader header, int64_t shard_bytes);

  absl::Status Begin();
  // Takes over the files that are there.
  absl::Status Resume();
  absl::Status WriteShard();

  const std::string directory_;
  const std::string partial_;
  LogitsHeader header_;
  const int64_t shard_bytes_;
  std::unique_ptr<FileLock> lock_;
  int64_t samples_ = 0;
  int64_t rows_ = 0;
  int64_t resumed_samples_ = 0;
  bool removed_others_ = false;
  // The file that is filled.
  std::vector<int64_t> first_rows_ = {0};
  std::vector<float> logits_;
  std::string ids_;  // as they are stored
};

}  // namespace tercio::checkpoint
