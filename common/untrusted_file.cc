#include "common/untrusted_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/file.h"

namespace tercio {
namespace {

constexpr mode_t kMode = 0644;

absl::Status Refused(const std::string& path, const char* why) {
  return absl::FailedPreconditionError(absl::StrCat(path, " is ", why, "; refusing to open it"));
}

}  // namespace

absl::StatusOr<UntrustedFile> UntrustedFile::Open(const std::string& path) {
  return OpenFor(path, O_RDONLY);
}

absl::StatusOr<UntrustedFile> UntrustedFile::OpenToAppend(const std::string& path) {
  return OpenFor(path, O_WRONLY | O_APPEND | O_CREAT);
}

absl::StatusOr<UntrustedFile> UntrustedFile::OpenFor(const std::string& path, int flags) {
  const std::filesystem::path parts(path);
  // The parent without a trailing slash, which would follow a link.
  const std::string parent = parts.has_parent_path() ? parts.parent_path().string() : ".";
  const std::string name = parts.filename().string();
  // The directory is opened first, so that it cannot be exchanged for a link in between.
  const int directory = open(parent.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (directory < 0) return FileError(errno, "cannot open the directory of", path);
  const absl::Cleanup close_directory = [directory] { close(directory); };
  // Without O_NONBLOCK, opening a FIFO would wait for its other end.
  const int file = openat(directory, name.c_str(),
                          flags | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, kMode);
  // These two errors are how the kernel reports what the flags above refuse.
  if (file < 0 && errno == ELOOP) return Refused(path, "a symbolic link");
  if (file < 0 && errno == ENXIO) return Refused(path, "a FIFO or a socket");
  if (file < 0) return FileError(errno, "cannot open", path);
  UntrustedFile opened(file, 0);
  struct stat info = {};
  // The open file is looked at, not its path, which may already be another one.
  if (fstat(file, &info) != 0) return FileError(errno, "cannot read", path);
  if (!S_ISREG(info.st_mode)) return Refused(path, "not a regular file");
  // Another name could be a file that the user may not write.
  if (info.st_nlink > 1) return Refused(path, "a file with more than one name (hard link)");
  opened.inode_ = info.st_ino;
  return opened;
}

UntrustedFile::~UntrustedFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

UntrustedFile::UntrustedFile(UntrustedFile&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)), inode_(other.inode_) {}

UntrustedFile& UntrustedFile::operator=(UntrustedFile&& other) noexcept {
  // The other object closes what this one had.
  std::swap(descriptor_, other.descriptor_);
  std::swap(inode_, other.inode_);
  return *this;
}

int64_t UntrustedFile::size() const {
  struct stat info = {};
  return fstat(descriptor_, &info) == 0 ? info.st_size : 0;
}

std::string UntrustedFile::Read(int64_t offset, size_t most) const {
  std::string bytes(most, '\0');
  size_t done = 0;
  // A file may end before what was asked for.
  while (done < most) {
    const ssize_t count =
        pread(descriptor_, bytes.data() + done, most - done, offset + static_cast<int64_t>(done));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    done += static_cast<size_t>(count);
  }
  bytes.resize(done);
  return bytes;
}

}  // namespace tercio
