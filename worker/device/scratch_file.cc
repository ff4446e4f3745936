#include "worker/device/scratch_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace tercio::device {
namespace {

constexpr double kGiB = int64_t{1} << 30;

// Some file systems have no files without a name: there the name is removed at once.
int OpenUnnamed(const std::string& directory) {
  const int file = open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (file >= 0 || (errno != EOPNOTSUPP && errno != EISDIR)) return file;
  std::string name = directory + "/scratch-XXXXXX";
  const int named = mkostemp(name.data(), O_CLOEXEC);
  if (named >= 0) unlink(name.c_str());
  return named;
}

std::string FreeText(const std::string& directory) {
  struct statvfs status = {};
  if (statvfs(directory.c_str(), &status) != 0) return "";
  return absl::StrFormat(" (%.1f GiB are free)", static_cast<double>(status.f_bavail) *
                                                     static_cast<double>(status.f_frsize) / kGiB);
}

absl::Status Unusable(const std::string& directory, int64_t bytes, int error) {
  return absl::FailedPreconditionError(absl::StrFormat(
      "offload: %.1f GiB of scratch space in %s: %s%s; give the agent a --scratch directory with "
      "room for them, where its trainers may write, or offload less",
      static_cast<double>(bytes) / kGiB, directory, strerror(error), FreeText(directory)));
}

// Without it a disk that fails would look like a fault of the program.
void ExplainBusErrors() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction action = {};
    action.sa_handler = [](int) {
      constexpr char kText[] =
          "offload: a page of the scratch file could not be read or written: its disk is faulty, "
          "or was full or removed\n";
      const ssize_t written = write(STDERR_FILENO, kText, sizeof(kText) - 1);
      static_cast<void>(written);
    };
    // The access is repeated after the handler, and ends the process then.
    action.sa_flags = static_cast<int>(SA_RESETHAND);
    sigaction(SIGBUS, &action, nullptr);
  });
}

}  // namespace

absl::StatusOr<std::unique_ptr<ScratchFile>> ScratchFile::Create(const std::string& directory,
                                                                 int64_t bytes) {
  const int file = OpenUnnamed(directory);
  if (file < 0) return Unusable(directory, bytes, errno);
  absl::Cleanup close_file = [file] { close(file); };
  // A disk that is full is found here instead of in the middle of a step.
  if (const int error = posix_fallocate(file, 0, bytes); error != 0) {
    return Unusable(directory, bytes, error);
  }
  void* const data =
      mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (data == MAP_FAILED) return Unusable(directory, bytes, errno);
  ExplainBusErrors();
  std::move(close_file).Cancel();
  return std::unique_ptr<ScratchFile>(new ScratchFile(file, data, bytes));
}

ScratchFile::~ScratchFile() {
  munmap(data_, static_cast<size_t>(size_));
  close(descriptor_);
}

void ScratchFile::ReadAhead(int64_t begin, int64_t bytes) const {
  const int64_t page = sysconf(_SC_PAGESIZE);
  const int64_t first = begin / page * page;
  madvise(static_cast<std::byte*>(data_) + first, static_cast<size_t>(begin + bytes - first),
          MADV_WILLNEED);
}

void ScratchFile::WriteBehind(int64_t begin, int64_t bytes) const {
  sync_file_range(descriptor_, begin, bytes, SYNC_FILE_RANGE_WRITE);
}

}  // namespace tercio::device
