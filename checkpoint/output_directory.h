// A directory that appears complete or not at all: files are written beside its place, synced, and
// one rename makes it visible. If it is not committed, all of it is removed.
//
// Threads: one at a time; WriteParts starts and ends its own.
// Errors: FAILED_PRECONDITION when the place is taken or cannot be written, RESOURCE_EXHAUSTED when
// the disk is full.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/manifest.h"
#include "common/append_file.h"
#include "common/ordered_parts.h"

namespace tercio::checkpoint {

// Called with the bytes done so far and in total, by one thread at a time; may be empty.
using WriteProgress = std::function<void(int64_t done, int64_t total)>;

// Whether files() has digests; writing is faster without.
enum class FileDigests { kNone, kAll };

class OutputDirectory {
 public:
  static absl::StatusOr<std::unique_ptr<OutputDirectory>> Create(const std::string& path,
                                                                 FileDigests digests);
  ~OutputDirectory();
  OutputDirectory(const OutputDirectory&) = delete;
  OutputDirectory& operator=(const OutputDirectory&) = delete;

  // `name` may lie in a folder, "hf/config.json".
  absl::Status Write(const std::string& name, std::string_view content);
  // A file of `count` parts: made on all cores, digested and written at the same time.
  // `frame`, where there is one, adds what stands between them.
  absl::Status WriteParts(const std::string& name, int64_t count, const MakePart& make,
                          PartFrame* frame = nullptr);

  // From now on `progress` is called with the bytes of parts, out of `total`.
  void ShowProgress(int64_t total, WriteProgress progress) {
    progress_total_ = total;
    progress_ = std::move(progress);
  }

  // Size and digest of every file that was ended.
  const std::map<std::string, ManifestFile>& files() const { return files_; }
  int64_t bytes() const;

  absl::Status Commit();

 private:
  OutputDirectory() = default;
  absl::StatusOr<std::unique_ptr<AppendFile>> Begin(const std::string& name);

  std::string path_;
  std::string partial_;
  bool committed_ = false;
  bool digests_ = true;
  WriteProgress progress_;
  int64_t progress_total_ = 0;
  int64_t progress_done_ = 0;
  std::map<std::string, ManifestFile> files_;
};

}  // namespace tercio::checkpoint
