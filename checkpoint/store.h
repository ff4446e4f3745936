// The coordinator's checkpoints on disk:  ROOT/<job>/step-<8 digits>/ , visible by one rename.
//
// A save is written into ROOT/<job>/step-N.partial-<attempt>/ : one safetensors file per rank, then
// the manifest, everything synced, then renamed. What a crash leaves is a .partial directory, which
// nobody reads and the next start removes.
//
// Threads: uploads of different ranks run in parallel; the other calls from any thread.
// Errors: RESOURCE_EXHAUSTED (disk full), PERMISSION_DENIED, DATA_LOSS (checksum differs),
// INVALID_ARGUMENT.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "checkpoint/manifest.h"
#include "common/append_file.h"
#include "common/checksum.h"
#include "proto/tercio/v1/checkpoint_service.pb.h"

namespace tercio::checkpoint {

// One rank's stream on its way to disk.
class RankUpload {
 public:
  RankUpload(const RankUpload&) = delete;
  RankUpload& operator=(const RankUpload&) = delete;

  absl::Status Write(std::string_view bytes);
  // Compares checksum and size, syncs the file. The rank's part of the manifest is then at
  // `part()`.
  absl::Status Finish(const v1::UploadEnd& end);
  const Manifest& part() const { return part_; }

 private:
  friend class Store;
  RankUpload() = default;

  std::string name_;
  std::unique_ptr<AppendFile> file_;
  int64_t expected_bytes_ = 0;  // of the stream
  int64_t received_bytes_ = 0;
  int64_t header_bytes_ = 0;
  Checksum checksum_;  // of the file
  Manifest part_;
};

struct Committed {
  int64_t step = 0;
  std::string path;
  int64_t bytes = 0;
};

class Store {
 public:
  // Paths that it gives out are absolute, whatever `root` is.
  explicit Store(const std::string& root);

  std::string PathOf(const std::string& job, int64_t step) const;

  absl::StatusOr<std::unique_ptr<RankUpload>> Begin(const v1::UploadBegin& begin);

  // All ranks have finished: joins their parts, writes the manifest, renames.
  absl::StatusOr<Committed> Commit(const std::string& job, int64_t step, int32_t attempt,
                                   const std::string& model_json,
                                   const std::string& training_state_json,
                                   const std::string& tokenizer_json,
                                   const std::vector<Manifest>& parts);
  // Removes what a save that will not be committed has written.
  absl::Status Abandon(const std::string& job, int64_t step, int32_t attempt);

  // The attempt that committed this step; 0 when nothing readable is there.
  int32_t AttemptOf(const std::string& job, int64_t step) const;

  // Committed checkpoints, oldest first (whether good or not).
  std::vector<Committed> List(const std::string& job) const;
  // The newest one whose every digest is right; step 0 when there is none. Damaged ones are named
  // in `damaged` (may be null).
  Committed LatestGood(const std::string& job, std::vector<std::string>* damaged) const;
  // All but the newest `keep_last` (at least one) and those of steps that are multiples of
  // `keep_every` (0: none), oldest first.
  std::vector<Committed> Superfluous(const std::string& job, int keep_last,
                                     int64_t keep_every) const;
  absl::Status Remove(const std::string& job, int64_t step);
  // Removes what is superfluous. Returns the steps removed.
  absl::StatusOr<std::vector<int64_t>> Prune(const std::string& job, int keep_last,
                                             int64_t keep_every);
  // For drills: until then (by SteadyNow) every save is refused as on a full disk. Any thread.
  void PretendFull(absl::Time until) { full_until_nanos_ = absl::ToUnixNanos(until); }
  // Removes all .partial directories.
  absl::Status RemovePartials();

 private:
  std::string PartialPath(const std::string& job, int64_t step, int32_t attempt) const;

  const std::string root_;
  std::atomic<int64_t> full_until_nanos_{0};
};

}  // namespace tercio::checkpoint
