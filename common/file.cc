#include "common/file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <limits>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace tercio {
namespace {

class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}
  ~Descriptor() {
    if (value_ >= 0) close(value_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return value_; }
  // The caller takes the descriptor over, and this must not close it.
  int Release() { return std::exchange(value_, -1); }

 private:
  int value_;
};

absl::Status WriteAll(int descriptor, std::string_view content, const std::string& path) {
  while (!content.empty()) {
    const ssize_t written = write(descriptor, content.data(), content.size());
    if (written < 0 && errno == EINTR) continue;
    // A write of no bytes does not happen for regular files: full disks are errors.
    if (written < 0) return FileError(errno, "cannot write", path);
    content.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

// `path` is used in messages. Stops soon after `limit` bytes.
absl::StatusOr<std::string> ReadToEnd(int descriptor, const std::string& path, size_t limit) {
  std::string content;
  char buffer[65536];
  // The size of a file is not asked for: files of /proc have none.
  while (content.size() <= limit) {
    const ssize_t count = read(descriptor, buffer, sizeof(buffer));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return FileError(errno, "cannot read", path);
    if (count == 0) break;
    content.append(buffer, static_cast<size_t>(count));
  }
  return content;
}

}  // namespace

absl::Status FileError(int error, std::string_view what, std::string_view path) {
  const std::string message = absl::StrCat(std::string(what), " ", std::string(path), ": ",
                                           std::generic_category().message(error));
  // Exit codes and answers follow from these codes, so that equal causes have equal ones.
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return absl::NotFoundError(message);
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::PermissionDeniedError(message);
    case ENOSPC:
    case EDQUOT:
      return absl::ResourceExhaustedError(message);
    case EISDIR:
    case ELOOP:
    case ENAMETOOLONG:
      return absl::InvalidArgumentError(message);
    default:
      return absl::InternalError(message);
  }
}

absl::Status AsConflict(const absl::Status& status) {
  // A full disk keeps its code: people look for it.
  if (status.ok() || absl::IsResourceExhausted(status)) return status;
  return absl::FailedPreconditionError(std::string(status.message()));
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) return FileError(errno, "cannot open", path);
  return ReadToEnd(file.get(), path, std::numeric_limits<size_t>::max());
}

absl::StatusOr<std::string> ReadInput(const std::string& path, size_t limit) {
  const bool standard = path == "-";
  const Descriptor file(standard ? -1 : open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!standard && file.get() < 0) return FileError(errno, "cannot open", path);
  // The standard input has no descriptor of its own to close.
  auto content = ReadToEnd(standard ? STDIN_FILENO : file.get(), path, limit);
  if (content.ok() && content->size() > limit) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": larger than ", limit, " bytes"));
  }
  return content;
}

absl::Status WriteFileDurably(const std::string& path, std::string_view content, int mode) {
  static std::atomic<int64_t> count{0};
  // Threads and processes may write to the same place at the same time.
  const std::string temporary = absl::StrCat(path, ".tmp.", getpid(), ".", ++count);
  {
    // Does not write to a leftover of a process that has died, or through a link that someone has
    // put there.
    unlink(temporary.c_str());
    const Descriptor file(open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode));
    if (file.get() < 0) return FileError(errno, "cannot create", temporary);
    absl::Status status = WriteAll(file.get(), content, temporary);
    // The content is on the disk before its name is.
    if (status.ok() && fsync(file.get()) != 0) status = FileError(errno, "cannot sync", temporary);
    if (!status.ok()) {
      unlink(temporary.c_str());
      return status;
    }
  }
  if (absl::Status renamed = RenamePath(temporary, path); !renamed.ok()) {
    unlink(temporary.c_str());
    return renamed;
  }
  // The rename is an entry of the directory, which has to reach the disk as well.
  const std::string parent = std::filesystem::path(path).parent_path().string();
  return SyncPath(parent.empty() ? "." : parent);
}

absl::Status SyncPath(const std::string& path) {
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) return FileError(errno, "cannot open", path);
  if (fsync(file.get()) != 0) return FileError(errno, "cannot sync", path);
  return absl::OkStatus();
}

absl::Status MakeDirectories(const std::string& path) {
  std::error_code error;
  // A directory that is there already is no error.
  std::filesystem::create_directories(path, error);
  if (error) return FileError(error.value(), "cannot create directory", path);
  if (!std::filesystem::is_directory(path, error)) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is not a directory"));
  }
  return absl::OkStatus();
}

absl::Status RemoveTree(const std::string& path) {
  std::error_code error;
  // What is not there is removed already.
  std::filesystem::remove_all(path, error);
  return error ? FileError(error.value(), "cannot remove", path) : absl::OkStatus();
}

absl::Status RenamePath(const std::string& from, const std::string& to) {
  if (rename(from.c_str(), to.c_str()) != 0) return FileError(errno, "cannot rename to", to);
  return absl::OkStatus();
}

absl::StatusOr<int64_t> FreeBytes(const std::string& path) {
  struct statvfs info = {};
  if (statvfs(path.c_str(), &info) != 0)
    return FileError(errno, "cannot get the free space of", path);
  // Blocks that only root can use are left out.
  return static_cast<int64_t>(info.f_bavail) * static_cast<int64_t>(info.f_frsize);
}

bool PathExists(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0;
}

std::vector<std::string> ListDirectory(const std::string& path) {
  std::vector<std::string> names;
  std::error_code error;
  // A directory that cannot be read counts as empty.
  for (const auto& entry : std::filesystem::directory_iterator(path, error)) {
    names.push_back(entry.path().filename().string());
  }
  // The order of the file system is none.
  std::sort(names.begin(), names.end());
  return names;
}

absl::StatusOr<std::unique_ptr<FileLock>> FileLock::Acquire(const std::string& path,
                                                            WhenHeld held) {
  return Lock(path, held == WhenHeld::kWait ? LOCK_EX : LOCK_EX | LOCK_NB);
}

absl::StatusOr<std::unique_ptr<FileLock>> FileLock::AcquireShared(const std::string& path) {
  return Lock(path, LOCK_SH);
}

absl::StatusOr<std::unique_ptr<FileLock>> FileLock::Lock(const std::string& path, int how) {
  // The directory may belong to another user: does not follow links or block on a FIFO.
  constexpr int kFlags = O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  int descriptor = open(path.c_str(), O_RDWR | O_CREAT | kFlags, 0644);
  // A process that can only read the file can still wait for those that write it.
  if (descriptor < 0 && errno == EACCES) descriptor = open(path.c_str(), O_RDONLY | kFlags);
  Descriptor file(descriptor);
  if (file.get() < 0) return FileError(errno, "cannot open lock", path);
  if (flock(file.get(), how) != 0) {
    if (errno == EWOULDBLOCK) {
      return absl::FailedPreconditionError(absl::StrCat(path, " is locked by another process"));
    }
    return FileError(errno, "cannot lock", path);
  }
  // The holder has removed the file: this lock is on a file that no other process can find.
  struct stat held = {};
  struct stat there = {};
  if (fstat(file.get(), &held) != 0) return FileError(errno, "cannot lock", path);
  // Whoever holds the new file of that name must be waited for as well.
  if (lstat(path.c_str(), &there) != 0 || there.st_ino != held.st_ino) return Lock(path, how);
  return std::unique_ptr<FileLock>(new FileLock(file.Release()));
}

bool FileLock::IsHeld(const std::string& path) {
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  // A shared lock, so that other processes that only check do not take this one for the holder.
  return file.get() >= 0 && flock(file.get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
}

FileLock::~FileLock() { close(descriptor_); }

absl::StatusOr<std::shared_ptr<const MappedFile>> MappedFile::Open(const std::string& path) {
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) return FileError(errno, "cannot open", path);
  struct stat info;
  if (fstat(file.get(), &info) != 0) return FileError(errno, "cannot read", path);
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is not a regular file"));
  }
  const size_t size = static_cast<size_t>(info.st_size);
  // A mapping of no bytes is an error.
  if (size == 0) return std::shared_ptr<const MappedFile>(new MappedFile(nullptr, 0));
  void* data = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (data == MAP_FAILED) return FileError(errno, "cannot map", path);
  return std::shared_ptr<const MappedFile>(new MappedFile(static_cast<const char*>(data), size));
}

void MappedFile::Prefetch(size_t offset, size_t bytes) const {
  if (offset >= size_) return;
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  // The kernel wants whole pages.
  const size_t begin = offset / page * page;
  const size_t end = std::min(size_, offset + bytes);
  // Only a hint.
  (void)madvise(const_cast<char*>(data_) + begin, end - begin, MADV_WILLNEED);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<char*>(data_), size_);
}

}  // namespace tercio
