// Files in directories that a user with fewer rights can write to: an agent that runs as root reads
// files that its trainers leave there. The writer may replace a file by a link, a FIFO or a device,
// and may truncate it while it is read; none of these gives the reader another file's content,
// blocks it, or ends it (as SIGBUS ends a process that maps such a file).
//
// Neither the file nor its directory may be a symbolic link; directories above it are trusted. A
// file with a second name (a hard link) is refused, since it may belong to another user.
//
// Thread safety: const methods from any thread.
// Errors: NOT_FOUND: there is none; FAILED_PRECONDITION: it is no regular file, or has a second
// name; else as in common/file.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace tercio {

class UntrustedFile {
 public:
  // Opens for reading.
  static absl::StatusOr<UntrustedFile> Open(const std::string& path);
  // Opens for appending; creates the file, with mode 0644, if it does not exist.
  static absl::StatusOr<UntrustedFile> OpenToAppend(const std::string& path);
  ~UntrustedFile();
  UntrustedFile(UntrustedFile&& other) noexcept;
  UntrustedFile& operator=(UntrustedFile&& other) noexcept;
  UntrustedFile(const UntrustedFile&) = delete;
  UntrustedFile& operator=(const UntrustedFile&) = delete;

  int descriptor() const { return descriptor_; }
  uint64_t inode() const { return inode_; }
  // The current size; 0 if the system does not report it.
  int64_t size() const;
  // Up to `most` bytes from `offset` on: fewer at the end of the file, none if it cannot be read.
  std::string Read(int64_t offset, size_t most) const;

 private:
  UntrustedFile(int descriptor, uint64_t inode) : descriptor_(descriptor), inode_(inode) {}
  static absl::StatusOr<UntrustedFile> OpenFor(const std::string& path, int flags);

  int descriptor_;
  uint64_t inode_;
};

}  // namespace tercio
