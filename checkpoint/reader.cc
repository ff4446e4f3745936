#include "checkpoint/reader.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/checksum.h"
#include "common/machine.h"
#include "common/ordered_parts.h"
#include "common/status_macros.h"
#include "google/protobuf/util/json_util.h"

namespace tercio::checkpoint {
namespace {

constexpr size_t kReadAhead = size_t{8} << 20;

absl::StatusOr<Manifest> ReadManifest(const std::string& directory) {
  const std::string path = directory + "/manifest.json";
  TERCIO_ASSIGN_OR_RETURN(const std::string json, ReadFile(path));
  absl::StatusOr<Manifest> manifest = ManifestFromJson(json);
  if (!manifest.ok()) {
    return absl::Status(manifest.status().code(),
                        absl::StrCat(path, ": ", std::string(manifest.status().message())));
  }
  return manifest;
}

// The disk reads ahead.
std::string ChecksumOf(const MappedFile& file) {
  Checksum checksum;
  const std::string_view content = file.content();
  file.Prefetch(0, kReadAhead);
  for (size_t at = 0; at < content.size(); at += kReadAhead) {
    file.Prefetch(at + kReadAhead, kReadAhead);
    checksum.Update(content.substr(at, kReadAhead));
  }
  return checksum.Hex();
}

std::string SizeProblemOf(std::string_view content, const ManifestFile& expected) {
  if (static_cast<int64_t>(content.size()) == expected.bytes) return "";
  return absl::StrCat("has ", content.size(), " bytes, the manifest says ", expected.bytes);
}

std::string DigestProblemOf(const MappedFile& file, const ManifestFile& expected) {
  return ChecksumOf(file) == expected.checksum ? "" : "its checksum differs from the manifest's";
}

// Copies the part of `piece` that lies in `slice`.
void CopyOverlap(const Piece& piece, const char* bytes, const v1::TensorSlice& slice, float* out) {
  const int64_t row_begin = std::max(piece.row_begin, slice.row_begin());
  const int64_t row_end = std::min(piece.row_end, slice.row_end());
  const int64_t column_begin = std::max(piece.column_begin, slice.column_begin());
  const int64_t column_end = std::min(piece.column_end, slice.column_end());
  if (column_begin >= column_end) return;
  const int64_t piece_width = piece.column_end - piece.column_begin;
  const int64_t slice_width = slice.column_end() - slice.column_begin();
  if (row_begin < row_end && column_end - column_begin == piece_width &&
      piece_width == slice_width) {  // whole rows, one after the other
    std::memcpy(out + (row_begin - slice.row_begin()) * slice_width,
                bytes + piece.offset + (row_begin - piece.row_begin) * piece_width * 4,
                static_cast<size_t>((row_end - row_begin) * piece_width) * sizeof(float));
    return;
  }
  for (int64_t row = row_begin; row < row_end; ++row) {
    const int64_t from = (row - piece.row_begin) * piece_width + column_begin - piece.column_begin;
    const int64_t to =
        (row - slice.row_begin()) * slice_width + column_begin - slice.column_begin();
    std::memcpy(out + to, bytes + piece.offset + from * 4,
                static_cast<size_t>(column_end - column_begin) * sizeof(float));
  }
}

}  // namespace

std::vector<Finding> VerifyCheckpoint(const std::string& directory) {
  const absl::StatusOr<Manifest> manifest = ReadManifest(directory);
  if (!manifest.ok()) {
    return {{directory + "/manifest.json", std::string(manifest.status().message())}};
  }
  std::vector<Finding> findings = {{directory + "/manifest.json", ""}};
  std::vector<const ManifestFile*> expected = {nullptr};
  for (const auto& [name, file] : manifest->files) {
    findings.push_back({absl::StrCat(directory, "/", name), ""});
    expected.push_back(&file);
  }
  ForEachOnThreads(static_cast<int64_t>(findings.size()) - 1, MachineCores(), [&](int64_t i) {
    Finding& finding = findings[static_cast<size_t>(i + 1)];
    const ManifestFile& said = *expected[static_cast<size_t>(i + 1)];
    const auto file = MappedFile::Open(finding.path);
    finding.problem =
        !file.ok() ? std::string(file.status().message()) : SizeProblemOf((*file)->content(), said);
    if (finding.problem.empty()) finding.problem = DigestProblemOf(**file, said);
  });
  return findings;
}

absl::StatusOr<std::unique_ptr<Reader>> Reader::Open(const std::string& directory, bool digests) {
  auto reader = std::make_unique<Reader>();
  reader->directory_ = directory;
  TERCIO_ASSIGN_OR_RETURN(reader->manifest_, ReadManifest(directory));
  for (const auto& [name, expected] : reader->manifest_.files) {
    const std::string path = absl::StrCat(directory, "/", name);
    const auto file = MappedFile::Open(path);
    const std::string problem = !file.ok() ? std::string(file.status().message())
                                           : SizeProblemOf((*file)->content(), expected);
    if (!problem.empty()) return absl::DataLossError(absl::StrCat(path, ": ", problem));
    reader->files_[name] = *file;
  }
  if (digests) TERCIO_RETURN_IF_ERROR(reader->CheckDigests());
  if (!google::protobuf::util::JsonStringToMessage(reader->manifest_.model_json, &reader->model_)
           .ok()) {
    return absl::DataLossError(absl::StrCat(directory, "/manifest.json: bad model"));
  }
  return reader;
}

absl::Status Reader::CheckDigests() const {
  std::vector<std::string> names, problems(files_.size());
  for (const auto& [name, file] : files_) names.push_back(name);
  ForEachOnThreads(static_cast<int64_t>(names.size()), MachineCores(), [&](int64_t i) {
    const std::string& name = names[static_cast<size_t>(i)];
    problems[static_cast<size_t>(i)] = DigestProblemOf(*files_.at(name), manifest_.files.at(name));
  });
  for (size_t i = 0; i < names.size(); ++i) {
    if (problems[i].empty()) continue;
    return absl::DataLossError(absl::StrCat(directory_, "/", names[i], ": ", problems[i]));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> Reader::TokenizerJson() const {
  if (!files_.contains("tokenizer.json")) {
    return absl::NotFoundError(absl::StrCat(directory_, " holds no tokenizer"));
  }
  return std::string(files_.at("tokenizer.json")->content());
}

absl::Status Reader::CheckSlice(const v1::TensorSlice& slice) const {
  const auto found = manifest_.tensors.find(slice.tensor());
  if (found == manifest_.tensors.end()) {
    return absl::NotFoundError(absl::StrCat(directory_, " has no tensor ", slice.tensor()));
  }
  const ManifestTensor& tensor = found->second;
  const std::vector<int64_t> shape(slice.shape().begin(), slice.shape().end());
  if (shape != tensor.shape) {
    return absl::InvalidArgumentError(
        absl::StrCat(directory_, ": tensor ", slice.tensor(), " has another shape than the model"));
  }
  const int64_t columns = shape.size() == 2 ? shape[1] : 1;
  if (slice.row_begin() < 0 || slice.row_begin() > slice.row_end() || slice.row_end() > shape[0] ||
      slice.column_begin() < 0 || slice.column_begin() > slice.column_end() ||
      slice.column_end() > columns) {
    return absl::InvalidArgumentError(absl::StrCat("slice outside of tensor ", slice.tensor()));
  }
  return absl::OkStatus();
}

absl::Status Reader::ReadSlice(const v1::TensorSlice& slice, float* out) const {
  TERCIO_RETURN_IF_ERROR(CheckSlice(slice));
  for (const Piece& piece : manifest_.tensors.at(slice.tensor()).pieces) {
    CopyOverlap(piece, files_.at(piece.file)->content().data(), slice, out);
  }
  return absl::OkStatus();
}

}  // namespace tercio::checkpoint
