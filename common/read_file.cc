#include "common/read_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/file.h"

namespace tercio {
namespace {

// One read returns at most 2 GiB; smaller ones can be interrupted earlier.
constexpr int64_t kMostAtOnce = int64_t{64} << 20;

}  // namespace

RandomAccessFile::RandomAccessFile(std::string path, int descriptor, int64_t size)
    : path_(std::move(path)), descriptor_(descriptor), size_(size) {}

RandomAccessFile::~RandomAccessFile() { close(descriptor_); }

absl::StatusOr<std::unique_ptr<const RandomAccessFile>> RandomAccessFile::Open(
    const std::string& path) {
  // Does not block if the path is a FIFO.
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return FileError(errno, "cannot open", path);
  struct stat info = {};
  const bool known = fstat(descriptor, &info) == 0;
  if (!known || !S_ISREG(info.st_mode)) {
    // close may change errno.
    const int error = errno;
    close(descriptor);
    if (!known) return FileError(error, "cannot read", path);
    return absl::InvalidArgumentError(absl::StrCat(path, " is not a regular file"));
  }
  return std::unique_ptr<const RandomAccessFile>(
      new RandomAccessFile(path, descriptor, static_cast<int64_t>(info.st_size)));
}

absl::Status RandomAccessFile::Read(int64_t offset, int64_t bytes, char* out) const {
  while (bytes > 0) {
    // One call may return less than it was asked for.
    const ssize_t got =
        pread(descriptor_, out, static_cast<size_t>(std::min(bytes, kMostAtOnce)), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return FileError(errno, "cannot read", path_);
    // The file has become shorter since its manifest was written.
    if (got == 0) {
      return absl::DataLossError(absl::StrCat(path_, ": ends at byte ", offset, ", ", bytes,
                                              " bytes before the end of what is read"));
    }
    out += got;
    offset += got;
    bytes -= got;
  }
  return absl::OkStatus();
}

void RandomAccessFile::ForgetPages(int64_t offset, int64_t bytes) const {
  // This is only a hint: pages that stay cost nothing but memory.
  (void)posix_fadvise(descriptor_, offset, bytes, POSIX_FADV_DONTNEED);
}

}  // namespace tercio
