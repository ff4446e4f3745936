#include "data/append_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "common/file.h"

namespace tercio::data {

absl::StatusOr<AppendFile> AppendFile::Open(const std::string& path, int64_t keep) {
  // The file is not truncated here, since a writer that resumes keeps its beginning.
  const int descriptor = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  if (descriptor < 0) return FileError(errno, "cannot create", path);
  AppendFile file(descriptor, path);
  // The bytes behind `keep` are those of a block that was never committed.
  if (ftruncate(descriptor, keep) != 0) return FileError(errno, "cannot truncate", path);
  if (lseek(descriptor, keep, SEEK_SET) < 0) return FileError(errno, "cannot write", path);
  return file;
}

AppendFile::AppendFile(AppendFile&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)), path_(std::move(other.path_)) {}

AppendFile& AppendFile::operator=(AppendFile&& other) noexcept {
  // The other file closes the old descriptor when it dies.
  std::swap(descriptor_, other.descriptor_);
  std::swap(path_, other.path_);
  return *this;
}

AppendFile::~AppendFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

absl::Status AppendFile::Append(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(descriptor_, bytes.data(), bytes.size());
    // A signal is no failure, and write may take less than it was given.
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return FileError(errno, "cannot write", path_);
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

absl::Status AppendFile::Sync() {
  return fsync(descriptor_) == 0 ? absl::OkStatus() : FileError(errno, "cannot sync", path_);
}

}  // namespace tercio::data
