// Files in directories that somebody with fewer rights can write: an agent that is root reads what
// its trainers leave there. The writer may put a link, a FIFO or a device in the place of a file,
// and may shorten a file while it is read; none of these gives the reader another file's content,
// keeps it waiting, or ends it (as SIGBUS does who maps such a file).
//
// Neither the file nor the directory that it lies in may be a symbolic link; directories above it
// are trusted. A file with a second name (a hard link) is refused, since it may be anybody's.
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
  // For reading.
  static absl::StatusOr<UntrustedFile> Open(const std::string& path);
  // For appending; made, with mode 0644, where there is none.
  static absl::StatusOr<UntrustedFile> OpenToAppend(const std::string& path);
  ~UntrustedFile();
  UntrustedFile(UntrustedFile&& other) noexcept;
  UntrustedFile& operator=(UntrustedFile&& other) noexcept;
  UntrustedFile(const UntrustedFile&) = delete;
  UntrustedFile& operator=(const UntrustedFile&) = delete;

  int descriptor() const { return descriptor_; }
  uint64_t inode() const { return inode_; }
  // As of now; 0 where the system does not say.
  int64_t size() const;
  // What there is of the `most` bytes that follow `offset`: fewer where the file ends, none where
  // it cannot be read.
  std::string Read(int64_t offset, size_t most) const;

 private:
  UntrustedFile(int descriptor, uint64_t inode) : descriptor_(descriptor), inode_(inode) {}
  static absl::StatusOr<UntrustedFile> OpenFor(const std::string& path, int flags);

  int descriptor_;
  uint64_t inode_;
};

}  // namespace tercio
