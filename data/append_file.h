// A file that only grows, written through to the disk when asked.
//
// Thread safety: thread-compatible.
// Errors: RESOURCE_EXHAUSTED for a full disk, PERMISSION_DENIED, else what the system said; each
// names the path.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tercio::data {

class AppendFile {
 public:
  // Makes the file if it is missing, and cuts it to its first `keep` bytes.
  static absl::StatusOr<AppendFile> Open(const std::string& path, int64_t keep);
  AppendFile(AppendFile&& other) noexcept;
  AppendFile& operator=(AppendFile&& other) noexcept;
  ~AppendFile();

  absl::Status Append(std::string_view bytes);
  // What was appended survives a loss of power.
  absl::Status Sync();

 private:
  AppendFile(int descriptor, std::string path) : descriptor_(descriptor), path_(std::move(path)) {}

  int descriptor_ = -1;
  std::string path_;
};

}  // namespace tercio::data
