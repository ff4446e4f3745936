#include "checkpoint/reader.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/sha256.h"
#include "common/status_macros.h"
#include "google/protobuf/util/json_util.h"

namespace tercio::checkpoint {
namespace {

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

std::string ProblemOf(const std::string& path, const ManifestFile& expected, bool digest) {
  const auto file = MappedFile::Open(path);
  if (!file.ok()) return std::string(file.status().message());
  const std::string_view content = (*file)->content();
  if (static_cast<int64_t>(content.size()) != expected.bytes) {
    return absl::StrCat("has ", content.size(), " bytes, the manifest says ", expected.bytes);
  }
  if (digest && Sha256Hex(content) != expected.sha256) {
    return "its SHA-256 differs from the manifest's";
  }
  return "";
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
  for (const auto& [name, file] : manifest->files) {
    const std::string path = absl::StrCat(directory, "/", name);
    findings.push_back({path, ProblemOf(path, file, /*digest=*/true)});
  }
  return findings;
}

absl::StatusOr<std::unique_ptr<Reader>> Reader::Open(const std::string& directory, bool digests) {
  auto reader = std::make_unique<Reader>();
  reader->directory_ = directory;
  TERCIO_ASSIGN_OR_RETURN(reader->manifest_, ReadManifest(directory));
  for (const auto& [name, file] : reader->manifest_.files) {
    const std::string path = absl::StrCat(directory, "/", name);
    if (const std::string problem = ProblemOf(path, file, digests); !problem.empty()) {
      return absl::DataLossError(absl::StrCat(path, ": ", problem));
    }
    TERCIO_ASSIGN_OR_RETURN(reader->files_[name], MappedFile::Open(path));
  }
  if (!google::protobuf::util::JsonStringToMessage(reader->manifest_.model_json, &reader->model_)
           .ok()) {
    return absl::DataLossError(absl::StrCat(directory, "/manifest.json: bad model"));
  }
  return reader;
}

absl::StatusOr<std::string> Reader::TokenizerJson() const {
  if (!files_.contains("tokenizer.json")) {
    return absl::NotFoundError(absl::StrCat(directory_, " holds no tokenizer"));
  }
  return std::string(files_.at("tokenizer.json")->content());
}

absl::Status Reader::ReadSlice(const v1::TensorSlice& slice, float* out) const {
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
  for (const Piece& piece : tensor.pieces) {
    CopyOverlap(piece, files_.at(piece.file)->content().data(), slice, out);
  }
  return absl::OkStatus();
}

}  // namespace tercio::checkpoint
