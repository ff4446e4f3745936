// A file that only grows, and is written through to the disk on request.
//
// Thread safety: thread-compatible. Errors: RESOURCE_EXHAUSTED for a full disk, PERMISSION_DENIED,
// else the system's error; each names the path.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tercio::data {

class AppendFile {
 public:
  // Creates the file if it is missing, and truncates it to its first `keep` bytes.
  static absl::StatusOr<AppendFile> Open(const std::string& path, int64_t keep);
  AppendFile(AppendFile&& other) noexcept;
  AppendFile& operator=(AppendFile&& other) noexcept;
  ~AppendFile();

  absl::Status Append(std::string_view bytes);
  // After this, appended bytes survive a loss of power.
  absl::Status Sync();

 private:
  AppendFile(int descriptor, std::string path) : descriptor_(descriptor), path_(std::move(path)) {}

  int descriptor_ = -1;
  std::string path_;
};

}  // namespace tercio::data
