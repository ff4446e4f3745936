#include "checkpoint/output_directory.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "common/file.h"
#include "common/machine.h"
#include "common/sha256.h"
#include "common/status_macros.h"

namespace tercio::checkpoint {
namespace {

constexpr int64_t kHintBytes = int64_t{8} << 20;

// Whatever keeps a result from being written is a conflict, but for a full disk.
absl::Status AsConflict(const absl::Status& status) {
  if (status.ok() || absl::IsResourceExhausted(status)) return status;
  return absl::FailedPreconditionError(std::string(status.message()));
}

std::string ParentOf(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

}  // namespace

absl::StatusOr<std::unique_ptr<OutputDirectory>> OutputDirectory::Create(const std::string& path,
                                                                         bool digests) {
  std::unique_ptr<OutputDirectory> output(new OutputDirectory);
  output->digests_ = digests;
  output->path_ = path;
  while (output->path_.size() > 1 && output->path_.back() == '/') output->path_.pop_back();
  std::error_code error;
  if (std::filesystem::symlink_status(output->path_, error).type() !=
      std::filesystem::file_type::not_found) {
    return absl::FailedPreconditionError(
        absl::StrCat(output->path_,
                     " cannot be made: something of that name is there; give another "
                     "--output"));
  }
  output->partial_ = absl::StrCat(output->path_, ".partial-", getpid());
  TERCIO_RETURN_IF_ERROR(AsConflict(MakeDirectories(output->partial_)));
  return output;
}

OutputDirectory::~OutputDirectory() {
  if (descriptor_ >= 0) close(descriptor_);
  if (!committed_ && !partial_.empty()) RemoveTree(partial_).IgnoreError();  // nothing else to do
}

absl::Status OutputDirectory::Begin(const std::string& name) {
  const std::string path = absl::StrCat(partial_, "/", name);
  TERCIO_RETURN_IF_ERROR(AsConflict(MakeDirectories(ParentOf(path))));
  descriptor_ = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (descriptor_ < 0) return AsConflict(FileError(errno, "cannot create", path));
  name_ = name;
  written_ = hinted_ = 0;
  return absl::OkStatus();
}

absl::Status OutputDirectory::Append(std::string_view bytes) {
  written_ += static_cast<int64_t>(bytes.size());
  while (!bytes.empty()) {
    const ssize_t written = write(descriptor_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return AsConflict(FileError(errno, "cannot write", partial_ + "/" + name_));
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  // The disk begins while the next parts are made. Only a hint: End waits, and sees errors.
  if (written_ - hinted_ >= kHintBytes) {
    (void)sync_file_range(descriptor_, hinted_, written_ - hinted_, SYNC_FILE_RANGE_WRITE);
    hinted_ = written_;
  }
  return absl::OkStatus();
}

absl::Status OutputDirectory::End(const std::string& sha256) {
  const int synced = fsync(descriptor_);
  const int error = errno;
  close(descriptor_);
  descriptor_ = -1;
  if (synced != 0) return AsConflict(FileError(error, "cannot sync", partial_ + "/" + name_));
  files_[name_] = {written_, sha256};
  return absl::OkStatus();
}

absl::Status OutputDirectory::Write(const std::string& name, std::string_view content) {
  TERCIO_RETURN_IF_ERROR(Begin(name));
  TERCIO_RETURN_IF_ERROR(Append(content));
  return End(digests_ ? Sha256Hex(content) : "");
}

absl::Status OutputDirectory::WriteParts(const std::string& name, int64_t count,
                                         const MakePart& make) {
  TERCIO_RETURN_IF_ERROR(Begin(name));
  Sha256 digest;
  std::vector<TakePart> takers = {[this](std::string_view bytes) { return Append(bytes); }};
  if (digests_) {
    takers.push_back([&digest](std::string_view bytes) {
      digest.Update(bytes);
      return absl::OkStatus();
    });
  }
  TERCIO_RETURN_IF_ERROR(StreamParts(count, MachineCores(), make, takers));
  return End(digests_ ? digest.HexDigest() : "");
}

int64_t OutputDirectory::bytes() const {
  int64_t sum = 0;
  for (const auto& [name, file] : files_) sum += file.bytes;
  return sum;
}

absl::Status OutputDirectory::Commit() {
  for (const auto& [name, file] : files_) {
    TERCIO_RETURN_IF_ERROR(AsConflict(SyncPath(ParentOf(absl::StrCat(partial_, "/", name)))));
  }
  TERCIO_RETURN_IF_ERROR(AsConflict(RenamePath(partial_, path_)));
  committed_ = true;
  return AsConflict(SyncPath(ParentOf(path_)));
}

}  // namespace tercio::checkpoint
