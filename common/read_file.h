// A file that is read at any offset, by pread: unlike with a mapped file, a shrinking file or a
// failing disk is an error that can be handled.
//
// Threads: any.
// Errors: as of common/file.h; DATA_LOSS: the file ends before the bytes that were asked for.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tercio {

class RandomAccessFile {
 public:
  // INVALID_ARGUMENT: not a regular file.
  static absl::StatusOr<std::unique_ptr<const RandomAccessFile>> Open(const std::string& path);
  ~RandomAccessFile();
  RandomAccessFile(const RandomAccessFile&) = delete;
  RandomAccessFile& operator=(const RandomAccessFile&) = delete;

  // Size at the time of opening.
  int64_t size() const { return size_; }
  const std::string& path() const { return path_; }
  // Reads all `bytes` from `offset` on.
  absl::Status Read(int64_t offset, int64_t bytes, char* out) const;
  // Tells the kernel to drop what was read from its cache: only a hint, for files that are read
  // once.
  void ForgetPages(int64_t offset, int64_t bytes) const;

 private:
  RandomAccessFile(std::string path, int descriptor, int64_t size);

  const std::string path_;
  const int descriptor_;
  const int64_t size_;
};

}  // namespace tercio
