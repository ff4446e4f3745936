// Checkpoints of jobs below one root directory:
//
//   ROOT/<job>/step-<8 digits>/manifest.json              makes it a checkpoint: the last thing
//   written ROOT/<job>/step-<8 digits>/attempt-<n>/rank-...       what the manifest names
//
// Every file that an attempt writes has a unique name, so that no attempt writes into another's
// files; a checkpoint becomes visible by one rename of one file, and another
// attempt that saves the same step replaces that file. Files that no manifest names are remains of
// a crash, or of a save that was given up: they are never read, and RemoveUnfinished removes them.
// Version 2 had the ranks' files beside the manifest: they are read as well.
//
// The root is the coordinator's own, whose files are streamed to it, or a directory that all nodes
// share (CheckpointSpec.path), where ranks write theirs.
//
// Threads: uploads of different ranks run in parallel; the other calls from any thread.
// Errors: RESOURCE_EXHAUSTED (disk full), PERMISSION_DENIED, DATA_LOSS (a checksum differs, a file
// does not match its description), INVALID_ARGUMENT; of listing also NOT_FOUND.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "checkpoint/manifest.h"
#include "checkpoint/part_writer.h"
#include "proto/tercio/v1/checkpoint_service.pb.h"

namespace tercio::checkpoint {

// One rank's stream on its way to disk. An unfinished file is removed on destruction.
class RankUpload {
 public:
  RankUpload(const RankUpload&) = delete;
  RankUpload& operator=(const RankUpload&) = delete;

  absl::Status Write(std::string_view bytes);
  // Compares checksum and size, syncs the file. Returns the rank's part of the manifest.
  absl::StatusOr<Manifest> Finish(const v1::UploadEnd& end);

 private:
  friend class Store;
  RankUpload() = default;

  std::string name_;
  Slices slices_;
  std::unique_ptr<PartWriter> file_;
};

struct Committed {
  int64_t step = 0;
  int32_t attempt = 0;
  std::string path;
  int64_t bytes = 0;
  std::string manifest_digest;                // empty: of a version that has none
  int32_t numerics = 0;                       // NumericsOf; 0: the manifest cannot be read
  std::optional<uint64_t> state_digest = {};  // StateDigestOf
};

// All that Commit needs besides the files.
struct CommitRequest {
  std::string job;
  int64_t step = 0;
  int32_t attempt = 0;
  std::string model_json;
  std::string training_state_json;
  std::string tokenizer_json;  // empty: none
  std::vector<Manifest> parts;
};

class Store {
 public:
  // Paths that it returns are absolute, whatever `root` is.
  explicit Store(const std::string& root);

  const std::string& root() const { return root_; }
  std::string PathOfJob(const std::string& job) const;
  std::string PathOf(const std::string& job, int64_t step) const;

  // A rank begins to send its part.
  absl::StatusOr<std::unique_ptr<RankUpload>> Begin(const v1::UploadBegin& begin);
  // A rank says that it has written its part itself (UploadBegin.file): whether a file of this name
  // and size is there, and what it adds to the manifest.
  absl::StatusOr<Manifest> Adopt(const v1::UploadBegin& begin, const v1::UploadEnd& end) const;

  // Reads the ranks' parts back from the disk, and compares every digest.
  absl::Status ReadBack(const std::string& job, int64_t step,
                        const std::vector<Manifest>& parts) const;

  // All ranks have finished: joins their parts and makes the checkpoint visible. `still_wanted` is
  // asked last, right before that: ABORTED when it says no.
  absl::StatusOr<Committed> Commit(
      const CommitRequest& request,
      const std::function<bool()>& still_wanted = [] { return true; });
  // Removes what this save has written, where it was not committed.
  absl::Status Abandon(const std::string& job, int64_t step, int32_t attempt);

  // Committed checkpoints (whether good or not) in the order of their commits: by attempt and step.
  // A manifest that cannot be read has attempt 0. NOT_FOUND: the job has no directory here, as
  // before its first save, or when the volume is not mounted.
  absl::StatusOr<std::vector<Committed>> List(const std::string& job) const;
  // The checkpoint of this step; NOT_FOUND when there is none.
  absl::StatusOr<Committed> Find(const std::string& job, int64_t step) const;
  absl::Status Remove(const std::string& job, int64_t step);
  absl::Status RemoveJob(const std::string& job);

  // For drills: until then (by SteadyNow) every save is refused as on a full disk. Any thread.
  void PretendFull(absl::Time until) { full_until_nanos_ = absl::ToUnixNanos(until); }
  // Removes everything that belongs to no checkpoint of the job. REQUIRES: no save of it is in
  // progress.
  absl::Status RemoveUnfinished(const std::string& job);
  // The same of every job below the root: goes through all of them and returns the first error.
  absl::Status RemoveUnfinished();

 private:
  std::string AttemptPath(const std::string& job, int64_t step, int32_t attempt) const;
  absl::Status CheckRoom(int64_t bytes) const;
  absl::Status RemoveUnnamed(const std::string& job, int64_t step) const;

  const std::string root_;
  std::atomic<int64_t> full_until_nanos_{0};
};

}  // namespace tercio::checkpoint
