#include "checkpoint/store.h"

#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <random>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "checkpoint/rank_file.h"
#include "checkpoint/reader.h"
#include "common/checksum.h"
#include "common/file.h"
#include "common/status_macros.h"
#include "common/steady_time.h"

namespace tercio::checkpoint {
namespace {

constexpr char kStepPrefix[] = "step-";
constexpr char kAttemptPrefix[] = "attempt-";
constexpr char kManifest[] = "manifest.json";
// Saves leave this much of a file system free (a twentieth where it is small) for everything beside
// the checkpoints, above all the coordinator's own state: a save must not be what stops every job.
constexpr int64_t kMostHeadroomBytes = int64_t{256} << 20;
constexpr int64_t kHeadroomPart = 20;

// -1 when the name is not that of a step's directory.
int64_t StepOfName(const std::string& name) {
  int64_t step = -1;
  if (!absl::StartsWith(name, kStepPrefix) || !absl::SimpleAtoi(name.substr(5), &step)) return -1;
  return step;
}

bool IsAttempt(const std::string& name) { return absl::StartsWith(name, kAttemptPrefix); }

// As ListDirectory, but says why a directory cannot be listed.
absl::StatusOr<std::vector<std::string>> Names(const std::string& path) {
  std::error_code error;
  std::filesystem::directory_iterator at(path, error);
  std::vector<std::string> names;
  for (; !error && at != std::filesystem::directory_iterator(); at.increment(error)) {
    names.push_back(at->path().filename().string());
  }
  if (error) return FileError(error.value(), "cannot list", path);
  std::sort(names.begin(), names.end());
  return names;
}

// A random part keeps names unique even if an attempt sends a part twice.
std::string FreshName(int rank) {
  static thread_local std::mt19937_64 random{std::random_device{}()};
  return absl::StrFormat("rank-%05d-%08x.safetensors", rank,
                         static_cast<uint32_t>(random() & 0xffffffff));
}

absl::Status Join(const Manifest& part, Manifest* whole) {
  // Names contain the attempt and a random number, so no part replaces another's entry.
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

int64_t StoredBytesOf(const Manifest& manifest, size_t manifest_bytes) {
  int64_t bytes = static_cast<int64_t>(manifest_bytes);
  for (const auto& [name, file] : manifest.files) bytes += file.bytes;
  return bytes;
}

std::string AttemptName(int32_t attempt) { return absl::StrCat(kAttemptPrefix, attempt); }

}  // namespace

absl::Status RankUpload::Write(std::string_view bytes) { return file_->Append(bytes); }

absl::StatusOr<Manifest> RankUpload::Finish(const v1::UploadEnd& end) {
  TERCIO_ASSIGN_OR_RETURN(const v1::UploadEnd written, file_->Close());
  if (end.bytes() != written.bytes()) {
    return absl::DataLossError(absl::StrCat(name_, ": got ", written.bytes(),
                                            " bytes, but the sender says ", end.bytes()));
  }
  if (end.checksum() != written.checksum()) {
    return absl::DataLossError(
        absl::StrCat(name_, ": the checksum of the stream differs from the sender's"));
  }
  return PartOfManifest(name_, slices_, written);
}

Store::Store(const std::string& root)
    // The path is made absolute once, so that a change of the working directory does not move it.
    : root_(std::filesystem::absolute(root).lexically_normal().string()) {}

std::string Store::PathOfJob(const std::string& job) const { return absl::StrCat(root_, "/", job); }

std::string Store::PathOf(const std::string& job, int64_t step) const {
  return absl::StrFormat("%s/%s%08d", PathOfJob(job), kStepPrefix, step);
}

std::string Store::AttemptPath(const std::string& job, int64_t step, int32_t attempt) const {
  return absl::StrCat(PathOf(job, step), "/", AttemptName(attempt));
}

absl::Status Store::CheckRoom(int64_t bytes) const {
  // A drill must not depend on how full the disk really is.
  if (absl::ToUnixNanos(SteadyNow()) < full_until_nanos_) {
    return absl::ResourceExhaustedError(absl::StrCat(root_, ": no space left on device (a drill)"));
  }
  struct statvfs info = {};
  if (statvfs(root_.c_str(), &info) != 0)
    return FileError(errno, "cannot query the free space of", root_);
  const auto unit = static_cast<int64_t>(info.f_frsize);
  // These are the blocks that a process without privileges may use.
  const int64_t free = static_cast<int64_t>(info.f_bavail) * unit;
  const int64_t headroom =
      std::min(kMostHeadroomBytes, static_cast<int64_t>(info.f_blocks) * unit / kHeadroomPart);
  if (bytes + headroom <= free) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(root_, ": no space left on device: ", bytes,
                                                   " bytes to write, ", free, " free, of which ",
                                                   headroom, " are reserved"));
}

absl::StatusOr<std::unique_ptr<RankUpload>> Store::Begin(const v1::UploadBegin& begin) {
  TERCIO_ASSIGN_OR_RETURN(const RankFile file, RankFileOf(begin.slices()));
  TERCIO_RETURN_IF_ERROR(MakeDirectories(root_));
  // Space is checked before the stream begins, since a save that cannot finish only costs time.
  TERCIO_RETURN_IF_ERROR(CheckRoom(static_cast<int64_t>(file.header.size()) + file.data_bytes()));
  std::unique_ptr<RankUpload> upload(new RankUpload);
  upload->name_ = absl::StrCat(AttemptName(begin.run().attempt()), "/", FreshName(begin.rank()));
  upload->slices_ = begin.slices();
  const std::string path =
      absl::StrCat(PathOf(begin.run().job_id(), begin.step()), "/", upload->name_);
  TERCIO_ASSIGN_OR_RETURN(upload->file_, PartWriter::Create(path, begin.slices()));
  return upload;
}

absl::StatusOr<Manifest> Store::Adopt(const v1::UploadBegin& begin,
                                      const v1::UploadEnd& end) const {
  const std::string prefix =
      // A rank may name only files of its own attempt and number, since the name becomes part of a
      // path.
      absl::StrCat(AttemptName(begin.run().attempt()), absl::StrFormat("/rank-%05d", begin.rank()));
  if (!absl::StartsWith(begin.file(), prefix) ||
      begin.file().find('/', prefix.size()) != std::string::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", begin.rank(), " must not name its part ", begin.file()));
  }
  TERCIO_ASSIGN_OR_RETURN(Manifest part, PartOfManifest(begin.file(), begin.slices(), end));
  const std::string path =
      absl::StrCat(PathOf(begin.run().job_id(), begin.step()), "/", begin.file());
  struct stat info = {};
  // A link could lead to a file outside the store, and is not followed.
  if (lstat(path.c_str(), &info) != 0) return FileError(errno, "cannot find", path);
  const int64_t expected = part.files.begin()->second.bytes;
  if (!S_ISREG(info.st_mode) || info.st_size != expected) {
    return absl::DataLossError(absl::StrCat(path, ": has ", info.st_size, " bytes, but rank ",
                                            begin.rank(), " says ", expected));
  }
  return part;
}

absl::Status Store::ReadBack(const std::string& job, int64_t step,
                             const std::vector<Manifest>& parts) const {
  const std::string path = PathOf(job, step);
  for (const Manifest& part : parts) {
    for (const auto& [name, file] : part.files) {
      TERCIO_RETURN_IF_ERROR(VerifyFile(absl::StrCat(path, "/", name), file));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Committed> Store::Commit(const CommitRequest& request,
                                        const std::function<bool()>& still_wanted) {
  const std::string path = PathOf(request.job, request.step);
  Manifest manifest;
  manifest.job = request.job;
  manifest.step = request.step;
  manifest.attempt = request.attempt;
  manifest.model_json = request.model_json;
  manifest.training_state_json = request.training_state_json;
  // Parts of different ranks may share a tensor, but together they must cover it once.
  for (const Manifest& part : request.parts) TERCIO_RETURN_IF_ERROR(Join(part, &manifest));
  if (!request.tokenizer_json.empty()) {
    manifest.tokenizer_file = absl::StrCat(AttemptName(request.attempt), "/tokenizer.json");
    TERCIO_RETURN_IF_ERROR(
        WriteFileDurably(absl::StrCat(path, "/", manifest.tokenizer_file), request.tokenizer_json));
    manifest.files[manifest.tokenizer_file] = {static_cast<int64_t>(request.tokenizer_json.size()),
                                               ChecksumHex(request.tokenizer_json)};
  }
  TERCIO_RETURN_IF_ERROR(CheckCoverage(manifest));
  const std::string json = ManifestToJson(manifest);
  // The slow part is written under a temporary name; if the disk hangs and continues later, it
  // becomes visible only if it is still wanted then.
  const std::string written =
      absl::StrCat(AttemptPath(request.job, request.step, request.attempt), "/", kManifest);
  TERCIO_RETURN_IF_ERROR(WriteFileDurably(written, json));
  // The names of the directories above, of which the first save of a job has made several.
  for (const std::string& directory : {PathOfJob(request.job), root_}) {
    TERCIO_RETURN_IF_ERROR(SyncPath(directory));
  }
  if (!still_wanted()) return absl::AbortedError("this save was given up");
  TERCIO_RETURN_IF_ERROR(RenamePath(written, absl::StrCat(path, "/", kManifest)));
  TERCIO_RETURN_IF_ERROR(SyncPath(path));
  // What other attempts at this step have left is of no use any more.
  TERCIO_RETURN_IF_ERROR(RemoveUnnamed(request.job, request.step));
  // A copy for programs that take the directory for a model and look for its tokenizer beside the
  // manifest, which names the original.
  if (!request.tokenizer_json.empty()) {
    TERCIO_RETURN_IF_ERROR(
        WriteFileDurably(absl::StrCat(path, "/tokenizer.json"), request.tokenizer_json));
  }
  return Committed{request.step,
                   request.attempt,
                   path,
                   StoredBytesOf(manifest, json.size()),
                   DigestOfManifest(json),
                   NumericsOf(manifest),
                   StateDigestOf(manifest)};
}

// Removes everything in a step's directory that is not part of its checkpoint.
absl::Status Store::RemoveUnnamed(const std::string& job, int64_t step) const {
  const std::string path = PathOf(job, step);
  const absl::StatusOr<std::string> text = ReadFile(absl::StrCat(path, "/", kManifest));
  // A step without a manifest was never committed.
  if (absl::IsNotFound(text.status())) return RemoveTree(path);
  if (!text.ok()) return text.status();
  const absl::StatusOr<Manifest> manifest = ManifestFromJson(*text);
  if (!manifest.ok()) return absl::OkStatus();  // it may yet be repaired
  std::set<std::string> kept = {kManifest};
  for (const auto& [name, file] : manifest->files) kept.insert(name);
  TERCIO_ASSIGN_OR_RETURN(const std::vector<std::string> attempts, Names(path));
  for (const std::string& attempt : attempts) {
    if (!IsAttempt(attempt)) continue;
    const std::string directory = absl::StrCat(path, "/", attempt);
    TERCIO_ASSIGN_OR_RETURN(const std::vector<std::string> names, Names(directory));
    size_t left = 0;
    for (const std::string& name : names) {
      if (kept.contains(absl::StrCat(attempt, "/", name))) {
        ++left;
      } else {
        TERCIO_RETURN_IF_ERROR(RemoveTree(absl::StrCat(directory, "/", name)));
      }
    }
    // An attempt without any file that counts leaves only its name.
    if (left == 0) TERCIO_RETURN_IF_ERROR(RemoveTree(directory));
  }
  return absl::OkStatus();
}

absl::Status Store::Abandon(const std::string& job, int64_t step, int32_t attempt) {
  const absl::StatusOr<Committed> there = Find(job, step);
  // The manifest is this attempt's, so only what it does not name may go.
  if (there.ok() && there->attempt == attempt) return RemoveUnnamed(job, step);
  if (!there.ok() && !absl::IsNotFound(there.status())) return there.status();
  TERCIO_RETURN_IF_ERROR(RemoveTree(AttemptPath(job, step, attempt)));
  std::error_code error;
  std::filesystem::remove(PathOf(job, step), error);  // goes only when it is empty
  return absl::OkStatus();
}

absl::StatusOr<Committed> Store::Find(const std::string& job, int64_t step) const {
  const std::string path = PathOf(job, step);
  TERCIO_ASSIGN_OR_RETURN(const std::string text, ReadFile(absl::StrCat(path, "/", kManifest)));
  // A manifest that is there counts as a checkpoint, good or not, for somebody has to see it.
  Committed committed{step, 0, path, static_cast<int64_t>(text.size()), "", 0};
  const absl::StatusOr<Manifest> manifest = ManifestFromJson(text);
  if (!manifest.ok()) return committed;
  committed.attempt = manifest->attempt;
  committed.bytes = StoredBytesOf(*manifest, text.size());
  committed.manifest_digest = DigestOfManifest(text);
  committed.numerics = NumericsOf(*manifest);
  committed.state_digest = StateDigestOf(*manifest);
  return committed;
}

absl::StatusOr<std::vector<Committed>> Store::List(const std::string& job) const {
  TERCIO_ASSIGN_OR_RETURN(const std::vector<std::string> names, Names(PathOfJob(job)));
  std::vector<Committed> result;
  for (const std::string& name : names) {
    const int64_t step = StepOfName(name);
    if (step < 0) continue;
    absl::StatusOr<Committed> committed = Find(job, step);
    if (absl::IsNotFound(committed.status())) continue;  // not committed
    if (!committed.ok()) return committed.status();
    result.push_back(*std::move(committed));
  }
  std::sort(result.begin(), result.end(), [](const Committed& a, const Committed& b) {
    return std::pair(a.attempt, a.step) < std::pair(b.attempt, b.step);
  });
  return result;
}

// The manifest goes first, so that an interrupted removal leaves no damaged checkpoint.
absl::Status Store::Remove(const std::string& job, int64_t step) {
  const std::string path = PathOf(job, step);
  TERCIO_RETURN_IF_ERROR(RemoveTree(absl::StrCat(path, "/", kManifest)));
  return RemoveTree(path);
}

absl::Status Store::RemoveJob(const std::string& job) { return RemoveTree(PathOfJob(job)); }

absl::Status Store::RemoveUnfinished(const std::string& job) {
  const absl::StatusOr<std::vector<std::string>> names = Names(PathOfJob(job));
  if (absl::IsNotFound(names.status())) return absl::OkStatus();
  if (!names.ok()) return names.status();
  for (const std::string& name : *names) {
    // Version 2 wrote into directories of this name.
    if (absl::StrContains(name, ".partial-")) {
      TERCIO_RETURN_IF_ERROR(RemoveTree(absl::StrCat(PathOfJob(job), "/", name)));
    } else if (const int64_t step = StepOfName(name); step >= 0) {
      TERCIO_RETURN_IF_ERROR(RemoveUnnamed(job, step));
    }
  }
  return absl::OkStatus();
}

absl::Status Store::RemoveUnfinished() {
  absl::Status first;
  // One job that cannot be cleaned does not keep the others from it.
  for (const std::string& job : ListDirectory(root_)) first.Update(RemoveUnfinished(job));
  return first;
}

}  // namespace tercio::checkpoint
