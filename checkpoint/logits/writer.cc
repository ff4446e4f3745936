#include "checkpoint/logits/writer.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "checkpoint/logits/reader.h"
#include "checkpoint/safetensors.h"
#include "common/append_file.h"
#include "common/check.h"
#include "common/sha256.h"
#include "common/status_macros.h"

namespace tercio::checkpoint {
namespace {

// The header of a run that has not ended, and what excludes a second run.
constexpr char kBegun[] = "begun.json";
constexpr char kLock[] = "lock";
constexpr char kUnfinished[] = ".unfinished";

std::string ShardFile(size_t number) { return absl::StrFormat("logits-%05d.safetensors", number); }

template <typename Value>
std::string_view AsBytes(const std::vector<Value>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(Value)};
}

// A shard that a run with this header has left, or an error.
absl::StatusOr<LogitsShard> ReadShard(const std::string& directory, const std::string& name,
                                      const LogitsHeader& header) {
  const std::string path = absl::StrCat(directory, "/", name);
  TERCIO_ASSIGN_OR_RETURN(const auto file, MappedFile::Open(path));
  const std::string_view content = file->content();
  LogitsShard shard{.file = name, .bytes = static_cast<int64_t>(content.size())};
  TERCIO_ASSIGN_OR_RETURN(const SafetensorsLayout layout, ParseSafetensors(content, shard.bytes));
  for (const TensorEntry& tensor : layout.tensors) {
    if (tensor.shape.empty()) continue;
    if (tensor.name == kRowsOfLogits) shard.samples = tensor.shape[0] - 1;
    if (tensor.name == kLogitsOfRows) shard.rows = tensor.shape[0];
  }
  shard.sha256 = Sha256Hex(content);
  if (shard.samples >= 1 && shard.rows >= 0 && header.k >= 1) return shard;
  return absl::DataLossError(absl::StrCat(path, ": it holds no rows of samples"));
}

// A write of a file that ends early leaves nothing behind that has the file's name.
absl::Status WriteWhole(const std::string& path, absl::Span<const std::string_view> parts,
                        int64_t bytes) {
  const std::string unfinished = path + kUnfinished;
  TERCIO_ASSIGN_OR_RETURN(const auto file,
                          AppendFile::Create(unfinished, AppendFile::Existing::kReplace,
                                             AppendFile::PageCache::kBypass, bytes));
  for (const std::string_view part : parts) TERCIO_RETURN_IF_ERROR(file->Append(part));
  TERCIO_RETURN_IF_ERROR(file->Close());
  TERCIO_RETURN_IF_ERROR(RenamePath(unfinished, path));
  return SyncPath(std::filesystem::path(path).parent_path().string());
}

}  // namespace

absl::Status CheckRoom(const std::string& directory, int64_t needed_bytes, int64_t free_bytes) {
  if (needed_bytes <= free_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      directory, ": the logits take ", needed_bytes, " bytes, and ", free_bytes,
      " are free there; free some, write to another place, or keep fewer of them (--top-k)"));
}

absl::Status CheckIsNew(const std::string& directory) {
  if (!PathExists(directory)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(directory, " exists; remove it, or name another directory"));
}

LogitsWriter::LogitsWriter(std::string directory, LogitsHeader header, int64_t shard_bytes)
    : directory_(std::move(directory)),
      partial_(directory_ + ".partial"),
      header_(std::move(header)),
      shard_bytes_(shard_bytes) {}

absl::StatusOr<std::unique_ptr<LogitsWriter>> LogitsWriter::Create(std::string directory,
                                                                   LogitsHeader header,
                                                                   int64_t shard_bytes) {
  TERCIO_CHECK(header.shards.empty());
  while (directory.size() > 1 && directory.back() == '/') directory.pop_back();
  std::unique_ptr<LogitsWriter> writer(
      new LogitsWriter(std::move(directory), std::move(header), shard_bytes));
  TERCIO_RETURN_IF_ERROR(writer->Begin());
  return writer;
}

absl::Status LogitsWriter::Begin() {
  TERCIO_RETURN_IF_ERROR(CheckIsNew(directory_));
  TERCIO_RETURN_IF_ERROR(AsConflict(MakeDirectories(partial_)));
  auto lock = FileLock::Acquire(absl::StrCat(partial_, "/", kLock), WhenHeld::kFail);
  if (absl::IsFailedPrecondition(lock.status())) {
    return absl::FailedPreconditionError(
        absl::StrCat(partial_, ": another process is writing these logits"));
  }
  TERCIO_RETURN_IF_ERROR(AsConflict(lock.status()));
  lock_ = *std::move(lock);
  const std::string begun = absl::StrCat(partial_, "/", kBegun);
  const std::string header = LogitsHeaderJson(header_);
  const absl::StatusOr<std::string> found = ReadFile(begun);
  if (found.ok() && *found == header) return Resume();
  // The name says that nobody else has files here.
  for (const std::string& name : ListDirectory(partial_)) {
    if (name == kLock) continue;
    removed_others_ = true;
    TERCIO_RETURN_IF_ERROR(AsConflict(RemoveTree(absl::StrCat(partial_, "/", name))));
  }
  return AsConflict(WriteFileDurably(begun, header));
}

absl::Status LogitsWriter::Resume() {
  const int64_t all = header_.subject.sample_count();
  for (std::string name; samples_ < all;) {
    name = ShardFile(header_.shards.size());
    const absl::StatusOr<LogitsShard> shard = ReadShard(partial_, name, header_);
    // What cannot be read is computed and written again.
    if (!shard.ok() || shard->samples > all - samples_) break;
    samples_ += shard->samples;
    rows_ += shard->rows;
    header_.shards.push_back(*shard);
  }
  resumed_samples_ = samples_;
  return absl::OkStatus();
}

absl::Status LogitsWriter::Add(absl::Span<const int32_t> ids, absl::Span<const float> logits) {
  TERCIO_CHECK_LT(samples_, header_.subject.sample_count());
  TERCIO_CHECK_EQ(ids.size(), logits.size());
  TERCIO_CHECK_EQ(ids.size() % static_cast<size_t>(header_.k), size_t{0});
  const int64_t row_bytes = BytesOfRow(header_.subject.vocabulary, header_.k);
  const auto rows = static_cast<int64_t>(ids.size()) / header_.k;
  const int64_t filled = first_rows_.back() * row_bytes;
  if (first_rows_.size() > 1 && filled + rows * row_bytes > shard_bytes_) {
    TERCIO_RETURN_IF_ERROR(WriteShard());
  }
  logits_.insert(logits_.end(), logits.begin(), logits.end());
  const bool narrow = HasNarrowIds(header_.subject.vocabulary);
  for (const int32_t id : ids) {
    TERCIO_CHECK(id >= 0 && id < header_.subject.vocabulary);
    const auto short_id = static_cast<uint16_t>(id);
    ids_.append(
        narrow ? reinterpret_cast<const char*>(&short_id) : reinterpret_cast<const char*>(&id),
        narrow ? sizeof(short_id) : sizeof(id));
  }
  first_rows_.push_back(first_rows_.back() + rows);
  ++samples_;
  rows_ += rows;
  return absl::OkStatus();
}

absl::Status LogitsWriter::WriteShard() {
  LogitsShard shard{.file = ShardFile(header_.shards.size()),
                    .samples = static_cast<int64_t>(first_rows_.size()) - 1,
                    .rows = first_rows_.back()};
  const bool narrow = HasNarrowIds(header_.subject.vocabulary);
  // The widest elements come first, so that all of them are aligned.
  std::vector<TensorEntry> tensors = {
      {.name = kRowsOfLogits, .shape = {shard.samples + 1}, .dtype = "I64"},
      {.name = kLogitsOfRows, .shape = {shard.rows, header_.k}, .dtype = "F32"},
      {.name = kIdsOfLogits, .shape = {shard.rows, header_.k}, .dtype = narrow ? "U16" : "I32"}};
  const std::string head = SafetensorsHeader(&tensors);
  const std::string_view parts[] = {head, AsBytes(first_rows_), AsBytes(logits_), ids_};
  Sha256 sha;
  for (const std::string_view part : parts) {
    sha.Update(part);
    shard.bytes += static_cast<int64_t>(part.size());
  }
  shard.sha256 = sha.HexDigest();
  const std::string path = absl::StrCat(partial_, "/", shard.file);
  const absl::Status written = WriteWhole(path, parts, shard.bytes);
  if (absl::IsResourceExhausted(written)) {
    return absl::ResourceExhaustedError(absl::StrCat(
        std::string(written.message()), "; this file takes ", shard.bytes,
        " bytes. Make room and run the same command again, which resumes behind the last file"));
  }
  TERCIO_RETURN_IF_ERROR(AsConflict(written));
  header_.shards.push_back(std::move(shard));
  first_rows_.assign(1, 0);
  logits_.clear();
  ids_.clear();
  return absl::OkStatus();
}

absl::Status LogitsWriter::Commit() {
  TERCIO_CHECK_EQ(samples_, header_.subject.sample_count());
  if (first_rows_.size() > 1) TERCIO_RETURN_IF_ERROR(WriteShard());
  TERCIO_RETURN_IF_ERROR(AsConflict(
      WriteFileDurably(absl::StrCat(partial_, "/", kLogitsHeader), LogitsHeaderJson(header_))));
  // Files that the header does not name: those of this run's working, and of an interrupted one.
  for (const std::string& name : ListDirectory(partial_)) {
    const bool named = name == kLogitsHeader ||
                       std::any_of(header_.shards.begin(), header_.shards.end(),
                                   [&](const LogitsShard& shard) { return shard.file == name; });
    if (named) continue;
    TERCIO_RETURN_IF_ERROR(AsConflict(RemoveTree(absl::StrCat(partial_, "/", name))));
  }
  TERCIO_RETURN_IF_ERROR(CheckIsNew(directory_));
  TERCIO_RETURN_IF_ERROR(AsConflict(RenamePath(partial_, directory_)));
  const std::string parent = std::filesystem::absolute(directory_).parent_path().string();
  return SyncPath(parent);
}

}  // namespace tercio::checkpoint
