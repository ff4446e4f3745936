#include "checkpoint/output_directory.h"

#include <unistd.h>

#include <filesystem>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/checksum.h"
#include "common/file.h"
#include "common/machine.h"
#include "common/status_macros.h"

namespace tercio::checkpoint {
namespace {

std::string ParentOf(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

}  // namespace

absl::StatusOr<std::unique_ptr<OutputDirectory>> OutputDirectory::Create(const std::string& path,
                                                                         FileDigests digests) {
  std::unique_ptr<OutputDirectory> output(new OutputDirectory);
  output->digests_ = digests == FileDigests::kAll;
  output->path_ = path;
  // With a slash at its end the path of the partial directory would lie inside of it.
  while (output->path_.size() > 1 && output->path_.back() == '/') output->path_.pop_back();
  std::error_code error;
  // A link that leads nowhere has taken the name, too, so links are not followed.
  if (std::filesystem::symlink_status(output->path_, error).type() !=
      std::filesystem::file_type::not_found) {
    return absl::FailedPreconditionError(absl::StrCat(
        output->path_, " cannot be created: the name is already taken; choose another --output"));
  }
  // The number of the process keeps two of them apart that write the same path.
  output->partial_ = absl::StrCat(output->path_, ".partial-", getpid());
  TERCIO_RETURN_IF_ERROR(AsConflict(MakeDirectories(output->partial_)));
  return output;
}

OutputDirectory::~OutputDirectory() {
  if (!committed_ && !partial_.empty()) RemoveTree(partial_).IgnoreError();  // nothing else to do
}

absl::StatusOr<std::unique_ptr<AppendFile>> OutputDirectory::Begin(const std::string& name) {
  const std::string path = absl::StrCat(partial_, "/", name);
  // A name may lie in a folder that nothing else has made.
  TERCIO_RETURN_IF_ERROR(AsConflict(MakeDirectories(ParentOf(path))));
  // The directory is new, so a file that is there already was named twice.
  auto file = AppendFile::Create(path, AppendFile::Existing::kRefuse, AppendFile::PageCache::kKeep);
  if (!file.ok()) return AsConflict(file.status());
  return file;
}

absl::Status OutputDirectory::Write(const std::string& name, std::string_view content) {
  TERCIO_ASSIGN_OR_RETURN(const auto file, Begin(name));
  TERCIO_RETURN_IF_ERROR(AsConflict(file->Append(content)));
  TERCIO_RETURN_IF_ERROR(AsConflict(file->Close()));
  files_[name] = {static_cast<int64_t>(content.size()), digests_ ? ChecksumHex(content) : ""};
  return absl::OkStatus();
}

absl::Status OutputDirectory::WriteParts(const std::string& name, int64_t count,
                                         const MakePart& make, PartFrame* frame) {
  TERCIO_ASSIGN_OR_RETURN(const auto file, Begin(name));
  Checksum checksum;
  int64_t size = 0;
  // The digest of plain parts is computed by a taker of its own, beside the writing; what a frame
  // writes exists in one thread only.
  const bool digests_here = digests_ && frame != nullptr;
  const TakePart write = [&](std::string_view bytes) {
    size += static_cast<int64_t>(bytes.size());
    progress_done_ += static_cast<int64_t>(bytes.size());
    // The total is an estimate without headers, and progress must not pass it.
    if (progress_) progress_(std::min(progress_done_, progress_total_), progress_total_);
    if (digests_here) checksum.Update(bytes);
    return AsConflict(file->Append(bytes));
  };
  std::vector<TakePart> takers = {write};
  if (frame != nullptr) {
    takers[0] = [&](std::string_view part) { return frame->Add(part, write); };
  } else if (digests_) {
    takers.push_back([&checksum](std::string_view bytes) {
      checksum.Update(bytes);
      return absl::OkStatus();
    });
  }
  TERCIO_RETURN_IF_ERROR(StreamParts(count, MachineCores(), make, takers));
  if (frame != nullptr) TERCIO_RETURN_IF_ERROR(frame->Finish(write));
  TERCIO_RETURN_IF_ERROR(AsConflict(file->Close()));
  files_[name] = {size, digests_ ? checksum.Hex() : ""};
  return absl::OkStatus();
}

int64_t OutputDirectory::bytes() const {
  int64_t sum = 0;
  for (const auto& [name, file] : files_) sum += file.bytes;
  return sum;
}

absl::Status OutputDirectory::Commit() {
  // The entries of all folders have to be on the disk before the name of the whole.
  std::set<std::string> folders;
  for (const auto& [name, file] : files_) {
    // A name may lie several folders deep, and each of these is an entry of the one above it.
    for (std::string folder = name; !folder.empty();) {
      const size_t slash = folder.rfind('/');
      folder = slash == std::string::npos ? "" : folder.substr(0, slash);
      folders.insert(absl::StrCat(partial_, "/", folder));
    }
  }
  for (const std::string& folder : folders) TERCIO_RETURN_IF_ERROR(AsConflict(SyncPath(folder)));
  TERCIO_RETURN_IF_ERROR(AsConflict(RenamePath(partial_, path_)));
  committed_ = true;
  // Without this the rename may be lost with the power.
  return AsConflict(SyncPath(ParentOf(path_)));
}

}  // namespace tercio::checkpoint
