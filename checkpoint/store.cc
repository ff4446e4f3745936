#include "checkpoint/store.h"

#include <fcntl.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "checkpoint/rank_file.h"
#include "checkpoint/reader.h"
#include "common/file.h"
#include "common/status_macros.h"
#include "common/steady_time.h"

namespace tercio::checkpoint {
namespace {

constexpr char kPrefix[] = "step-";

// -1 when the name is not that of a committed checkpoint.
int64_t StepOfName(const std::string& name) {
  int64_t step = -1;
  if (!absl::StartsWith(name, kPrefix) || !absl::SimpleAtoi(name.substr(5), &step)) return -1;
  return step;
}

int64_t DirectoryBytes(const std::string& path) {
  int64_t bytes = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(path, error)) {
    bytes += static_cast<int64_t>(entry.file_size(error));
  }
  return bytes;
}

// In one moment: a crash leaves the one or the other. What was at `path` is at `partial` then.
absl::Status TakeThePlaceOf(const std::string& path, const std::string& partial) {
  if (!PathExists(path)) return RenamePath(partial, path);
  if (renameat2(AT_FDCWD, partial.c_str(), AT_FDCWD, path.c_str(), RENAME_EXCHANGE) == 0) {
    return absl::OkStatus();
  }
  // File systems that cannot exchange (NFS).
  TERCIO_RETURN_IF_ERROR(RemoveTree(path));
  return RenamePath(partial, path);
}

absl::Status Join(const Manifest& part, Manifest* whole) {
  for (const auto& [name, file] : part.files) whole->files[name] = file;
  for (const auto& [name, tensor] : part.tensors) {
    ManifestTensor& joined = whole->tensors[name];
    if (joined.pieces.empty()) {
      joined.shape = tensor.shape;
      joined.dtype = tensor.dtype;
    } else if (joined.shape != tensor.shape) {
      return absl::InvalidArgumentError(absl::StrCat("ranks disagree on the shape of ", name));
    }
    joined.pieces.insert(joined.pieces.end(), tensor.pieces.begin(), tensor.pieces.end());
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RankUpload::Write(std::string_view bytes) {
  received_bytes_ += static_cast<int64_t>(bytes.size());
  if (received_bytes_ > expected_bytes_) {
    return absl::InvalidArgumentError(absl::StrCat(name_, ": more bytes than its slices have"));
  }
  checksum_.Update(bytes);
  return file_->Append(bytes);
}

absl::Status RankUpload::Finish(const v1::UploadEnd& end) {
  if (end.bytes() != received_bytes_ || received_bytes_ != expected_bytes_) {
    return absl::DataLossError(absl::StrCat(name_, ": got ", received_bytes_,
                                            " bytes, the sender says ", end.bytes(),
                                            ", its slices need ", expected_bytes_));
  }
  const std::string checksum = checksum_.Hex();
  if (checksum != end.checksum()) {
    return absl::DataLossError(
        absl::StrCat(name_, ": the checksum of the stream differs from the sender's"));
  }
  TERCIO_RETURN_IF_ERROR(file_->Close());
  part_.files[name_] = {header_bytes_ + received_bytes_, checksum};
  return absl::OkStatus();
}

Store::Store(const std::string& root)
    : root_(std::filesystem::absolute(root).lexically_normal().string()) {}

std::string Store::PathOf(const std::string& job, int64_t step) const {
  return absl::StrFormat("%s/%s/step-%08d", root_, job, step);
}

std::string Store::PartialPath(const std::string& job, int64_t step, int32_t attempt) const {
  return absl::StrCat(PathOf(job, step), ".partial-", attempt);
}

absl::StatusOr<std::unique_ptr<RankUpload>> Store::Begin(const v1::UploadBegin& begin) {
  if (absl::ToUnixNanos(SteadyNow()) < full_until_nanos_) {
    return absl::ResourceExhaustedError(absl::StrCat(root_, ": no space left on device (a drill)"));
  }
  const std::string directory =
      PartialPath(begin.run().job_id(), begin.step(), begin.run().attempt());
  TERCIO_RETURN_IF_ERROR(MakeDirectories(directory));
  std::unique_ptr<RankUpload> upload(new RankUpload);
  upload->name_ = absl::StrFormat("rank-%05d.safetensors", begin.rank());
  TERCIO_ASSIGN_OR_RETURN(const RankFile file, RankFileOf(begin.slices()));
  upload->header_bytes_ = static_cast<int64_t>(file.header.size());
  upload->expected_bytes_ = file.data_bytes();
  for (int i = 0; i < begin.slices_size(); ++i) {
    const v1::TensorSlice& slice = begin.slices(i);
    ManifestTensor& tensor = upload->part_.tensors[slice.tensor()];
    tensor.shape.assign(slice.shape().begin(), slice.shape().end());
    tensor.pieces.push_back(
        {upload->name_, upload->header_bytes_ + file.entries[static_cast<size_t>(i)].begin,
         slice.row_begin(), slice.row_end(), slice.column_begin(), slice.column_end()});
  }
  TERCIO_ASSIGN_OR_RETURN(
      upload->file_,
      AppendFile::Create(absl::StrCat(directory, "/", upload->name_),
                         AppendFile::Existing::kReplace, AppendFile::PageCache::kBypass,
                         upload->header_bytes_ + upload->expected_bytes_));
  upload->checksum_.Update(file.header);
  TERCIO_RETURN_IF_ERROR(upload->file_->Append(file.header));
  return upload;
}

absl::StatusOr<Committed> Store::Commit(const std::string& job, int64_t step, int32_t attempt,
                                        const std::string& model_json,
                                        const std::string& training_state_json,
                                        const std::string& tokenizer_json,
                                        const std::vector<Manifest>& parts) {
  const std::string partial = PartialPath(job, step, attempt);
  Manifest manifest;
  manifest.job = job;
  manifest.step = step;
  manifest.attempt = attempt;
  manifest.model_json = model_json;
  manifest.training_state_json = training_state_json;
  for (const Manifest& part : parts) TERCIO_RETURN_IF_ERROR(Join(part, &manifest));
  if (!tokenizer_json.empty()) {
    TERCIO_RETURN_IF_ERROR(WriteFileDurably(partial + "/tokenizer.json", tokenizer_json));
    manifest.files["tokenizer.json"] = {static_cast<int64_t>(tokenizer_json.size()),
                                        ChecksumHex(tokenizer_json)};
  }
  TERCIO_RETURN_IF_ERROR(CheckCoverage(manifest));
  TERCIO_RETURN_IF_ERROR(WriteFileDurably(partial + "/manifest.json", ManifestToJson(manifest)));
  // The same step of an attempt before: the newer one takes its place.
  const std::string path = PathOf(job, step);
  TERCIO_RETURN_IF_ERROR(TakeThePlaceOf(path, partial));
  TERCIO_RETURN_IF_ERROR(SyncPath(absl::StrCat(root_, "/", job)));
  TERCIO_RETURN_IF_ERROR(RemoveTree(partial));
  return Committed{step, path, DirectoryBytes(path)};
}

absl::Status Store::Abandon(const std::string& job, int64_t step, int32_t attempt) {
  return RemoveTree(PartialPath(job, step, attempt));
}

int32_t Store::AttemptOf(const std::string& job, int64_t step) const {
  const absl::StatusOr<std::string> text = ReadFile(PathOf(job, step) + "/manifest.json");
  if (!text.ok()) return 0;
  const absl::StatusOr<Manifest> manifest = ManifestFromJson(*text);
  return manifest.ok() ? manifest->attempt : 0;
}

std::vector<Committed> Store::List(const std::string& job) const {
  std::vector<Committed> result;
  for (const std::string& name : ListDirectory(absl::StrCat(root_, "/", job))) {
    const int64_t step = StepOfName(name);
    if (step < 0) continue;
    const std::string path = PathOf(job, step);
    result.push_back({step, path, DirectoryBytes(path)});
  }
  std::sort(result.begin(), result.end(),
            [](const Committed& a, const Committed& b) { return a.step < b.step; });
  return result;
}

Committed Store::LatestGood(const std::string& job, std::vector<std::string>* damaged) const {
  const std::vector<Committed> all = List(job);
  for (auto candidate = all.rbegin(); candidate != all.rend(); ++candidate) {
    const auto reader = Reader::Open(candidate->path, /*digests=*/true);
    if (reader.ok()) return *candidate;
    if (damaged != nullptr) damaged->push_back(std::string(reader.status().message()));
  }
  return {};
}

std::vector<Committed> Store::Superfluous(const std::string& job, int keep_last,
                                          int64_t keep_every) const {
  std::vector<Committed> all = List(job);
  const auto kept = static_cast<size_t>(std::max(1, keep_last));
  all.resize(all.size() > kept ? all.size() - kept : 0);
  std::erase_if(all, [keep_every](const Committed& committed) {
    return keep_every > 0 && committed.step % keep_every == 0;
  });
  return all;
}

absl::Status Store::Remove(const std::string& job, int64_t step) {
  return RemoveTree(PathOf(job, step));
}

absl::StatusOr<std::vector<int64_t>> Store::Prune(const std::string& job, int keep_last,
                                                  int64_t keep_every) {
  std::vector<int64_t> removed;
  for (const Committed& committed : Superfluous(job, keep_last, keep_every)) {
    TERCIO_RETURN_IF_ERROR(Remove(job, committed.step));
    removed.push_back(committed.step);
  }
  return removed;
}

absl::Status Store::RemovePartials() {
  for (const std::string& job : ListDirectory(root_)) {
    const std::string directory = absl::StrCat(root_, "/", job);
    for (const std::string& name : ListDirectory(directory)) {
      if (!absl::StrContains(name, ".partial-")) continue;
      TERCIO_RETURN_IF_ERROR(RemoveTree(absl::StrCat(directory, "/", name)));
    }
  }
  return absl::OkStatus();
}

}  // namespace tercio::checkpoint
