// Files, with errors that name the path: NOT_FOUND, PERMISSION_DENIED, RESOURCE_EXHAUSTED (disk
// full), FAILED_PRECONDITION (locked), INVALID_ARGUMENT (a directory, a name that cannot be), else
// INTERNAL.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tercio {

// The status for errno `error` of doing `what` to `path`.
absl::Status FileError(int error, std::string_view what, std::string_view path);

// Maps the error of a write: anything that prevents a result from being stored is a conflict
// (FAILED_PRECONDITION), except for a full disk.
absl::Status AsConflict(const absl::Status& status);

absl::StatusOr<std::string> ReadFile(const std::string& path);

// Reads text written by hand: a file, or "-", the standard input up to its end. More than `limit`
// bytes are INVALID_ARGUMENT, and not read.
absl::StatusOr<std::string> ReadInput(const std::string& path, size_t limit);

// Writes, syncs, and replaces `path` in one rename; the directory is synced too. With `mode`, as of
// chmod, a file that holds a secret is never readable by others, not even for a moment.
absl::Status WriteFileDurably(const std::string& path, std::string_view content, int mode = 0644);

// fsync of a file or directory.
absl::Status SyncPath(const std::string& path);

// Creates parents, too; an existing directory is fine.
absl::Status MakeDirectories(const std::string& path);
absl::Status RemoveTree(const std::string& path);
absl::Status RenamePath(const std::string& from, const std::string& to);
bool PathExists(const std::string& path);
// The bytes that an unprivileged writer can still write to the file system of `path`.
absl::StatusOr<int64_t> FreeBytes(const std::string& path);
// Names, ascending, without "." and "..". A missing directory has none.
std::vector<std::string> ListDirectory(const std::string& path);

// What to do about a lock that another process holds.
enum class WhenHeld { kFail, kWait };

// A lock on a file (created if missing), held until destruction. An exclusive holder may remove the
// file.
class FileLock {
 public:
  // Whether a process holds the lock exclusively. Creates no file, and blocks other processes only
  // for the duration of the check.
  static bool IsHeld(const std::string& path);
  // FAILED_PRECONDITION if another process holds it (WhenHeld::kFail).
  static absl::StatusOr<std::unique_ptr<FileLock>> Acquire(const std::string& path, WhenHeld held);
  // Waits for a shared lock, which excludes the holders above.
  static absl::StatusOr<std::unique_ptr<FileLock>> AcquireShared(const std::string& path);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  explicit FileLock(int descriptor) : descriptor_(descriptor) {}
  static absl::StatusOr<std::unique_ptr<FileLock>> Lock(const std::string& path, int how);
  int descriptor_;
};

// A whole file, read-only in memory.
class MappedFile {
 public:
  static absl::StatusOr<std::shared_ptr<const MappedFile>> Open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::string_view content() const { return {data_, size_}; }
  // Starts reading these bytes (as far as they exist) from the disk, and does not wait.
  void Prefetch(size_t offset, size_t bytes) const;

 private:
  MappedFile(const char* data, size_t size) : data_(data), size_(size) {}
  const char* data_;
  size_t size_;
};

}  // namespace tercio
