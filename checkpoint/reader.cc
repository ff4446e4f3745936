#include "checkpoint/reader.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "checkpoint/block_digests.h"
#include "checkpoint/file_state_digest.h"
#include "checkpoint/quantized_tensor.h"
#include "common/checksum.h"
#include "common/file.h"
#include "common/machine.h"
#include "common/ordered_parts.h"
#include "common/status_macros.h"
#include "plan/model_tensors.h"
#include "plan/state_digest.h"
#include "plan/text_form.h"

namespace tercio::checkpoint {
namespace {

// Large reads keep the disk busy, and bound the memory of each thread.
constexpr int64_t kReadBytes = int64_t{8} << 20;
// Values that ReadSlice asks for at a time.
constexpr int64_t kPartElements = int64_t{4} << 20;

absl::Status At(const std::string& path, const absl::Status& status) {
  const std::string message(status.message());
  // Some errors name the file already, and naming it twice would only confuse.
  const bool named = message.find(path) != std::string::npos;
  return absl::Status(status.code(), named ? message : absl::StrCat(path, ": ", message));
}

absl::StatusOr<Manifest> ReadManifest(const std::string& directory, std::string* digest) {
  const std::string path = directory + "/manifest.json";
  TERCIO_ASSIGN_OR_RETURN(const std::string json, ReadFile(path));
  absl::StatusOr<Manifest> manifest = ManifestFromJson(json);
  if (!manifest.ok()) return At(path, manifest.status());
  if (digest != nullptr) *digest = DigestOfManifest(json);
  return manifest;
}

// A file that an existing manifest names is part of the checkpoint: if it is missing, that is
// damage.
absl::StatusOr<std::unique_ptr<const RandomAccessFile>> OpenFile(const std::string& path,
                                                                 const ManifestFile& expected) {
  auto file = RandomAccessFile::Open(path);
  if (absl::IsNotFound(file.status()) || absl::IsInvalidArgument(file.status())) {
    return absl::DataLossError(std::string(file.status().message()));
  }
  if (!file.ok()) return file.status();
  if ((*file)->size() != expected.bytes) {
    return absl::DataLossError(absl::StrCat(path, ": has ", (*file)->size(),
                                            " bytes, but the manifest says ", expected.bytes));
  }
  return file;
}

// `state` may be null; else it gets all that was read.
absl::Status CheckDigest(const RandomAccessFile& file, const ManifestFile& expected,
                         FileStateDigest* state = nullptr) {
  Checksum checksum;
  // The buffer of an empty file is empty.
  std::vector<char> buffer(static_cast<size_t>(std::min(kReadBytes, expected.bytes)));
  for (int64_t at = 0; at < expected.bytes; at += kReadBytes) {
    const int64_t bytes = std::min(kReadBytes, expected.bytes - at);
    TERCIO_RETURN_IF_ERROR(file.Read(at, bytes, buffer.data()));
    checksum.Update({buffer.data(), static_cast<size_t>(bytes)});
    if (state != nullptr) state->Update(at, {buffer.data(), static_cast<size_t>(bytes)});
    // A checkpoint may be larger than memory, and reading it through must not push out the rest.
    file.ForgetPages(at, bytes);
  }
  if (checksum.Hex() == expected.checksum) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat(file.path(), ": its checksum differs from the manifest's"));
}

Finding FindingOf(const std::string& path, const absl::Status& status) {
  if (status.ok()) return {path, "", false};
  return {path, std::string(status.message()), absl::IsDataLoss(status)};
}

absl::Status ReadThrough(const std::string& path, const ManifestFile& expected,
                         FileStateDigest* state) {
  TERCIO_ASSIGN_OR_RETURN(const auto file, OpenFile(path, expected));
  return CheckDigest(*file, expected, state);
}

// Files that are what was written may still not be what was trained. Empty: they are, or nobody
// knows.
std::string OtherState(const Manifest& manifest, const std::vector<FileStateDigest>& files) {
  const std::optional<uint64_t> saved = StateDigestOf(manifest);
  if (!saved.has_value()) return "";
  uint64_t found = 0;
  for (const FileStateDigest& file : files) {
    if (!file.sum().has_value()) return "";
    found += *file.sum();
  }
  if (found == *saved) return "";
  return absl::StrCat("its files have the state ", plan::StateDigestText(found),
                      ", but its trainers had ", plan::StateDigestText(*saved),
                      ": it was changed before it was written");
}

}  // namespace

absl::Status VerifyFile(const std::string& path, const ManifestFile& expected) {
  return ReadThrough(path, expected, nullptr);
}

std::vector<Finding> VerifyCheckpoint(const std::string& directory) {
  const absl::StatusOr<Manifest> manifest = ReadManifest(directory, nullptr);
  std::vector<Finding> findings = {FindingOf(directory + "/manifest.json", manifest.status())};
  if (!manifest.ok()) return findings;
  std::vector<const ManifestFile*> expected = {nullptr};
  std::vector<FileStateDigest> states;
  // All findings exist before the threads start, so that none of them moves.
  for (const auto& [name, file] : manifest->files) {
    findings.push_back({absl::StrCat(directory, "/", name), "", false});
    expected.push_back(&file);
    states.emplace_back(*manifest, name);
  }
  ForEachOnThreads(static_cast<int64_t>(findings.size()) - 1, MachineCores(), [&](int64_t i) {
    Finding& finding = findings[static_cast<size_t>(i + 1)];
    const ManifestFile& said = *expected[static_cast<size_t>(i + 1)];
    finding =
        FindingOf(finding.path, ReadThrough(finding.path, said, &states[static_cast<size_t>(i)]));
  });
  const bool good = std::all_of(findings.begin(), findings.end(),
                                [](const Finding& finding) { return finding.problem.empty(); });
  if (!good) return findings;
  findings.front().problem = OtherState(*manifest, states);
  findings.front().damaged = !findings.front().problem.empty();
  return findings;
}

absl::StatusOr<std::unique_ptr<Reader>> Reader::Open(const std::string& directory,
                                                     DigestCheck check) {
  auto reader = std::make_unique<Reader>();
  reader->directory_ = directory;
  TERCIO_ASSIGN_OR_RETURN(reader->manifest_, ReadManifest(directory, &reader->manifest_digest_));
  for (const auto& [name, expected] : reader->manifest_.files) {
    // Files stay open, so that a checkpoint that is removed meanwhile can still be read to its end.
    TERCIO_ASSIGN_OR_RETURN(reader->files_[name],
                            OpenFile(absl::StrCat(directory, "/", name), expected));
  }
  if (check == DigestCheck::kEveryByte) TERCIO_RETURN_IF_ERROR(reader->CheckDigests());
  if (!plan::FromJson(reader->manifest_.model_json, &reader->model_).ok()) {
    return absl::DataLossError(absl::StrCat(directory, "/manifest.json: bad model"));
  }
  // What its tensors are read as has no codes.
  reader->model_.clear_base_format();
  return reader;
}

absl::Status Reader::CheckDigests() const {
  std::vector<std::string> names;
  for (const auto& [name, file] : files_) names.push_back(name);
  std::vector<absl::Status> outcomes(names.size());
  ForEachOnThreads(static_cast<int64_t>(names.size()), MachineCores(), [&](int64_t i) {
    const std::string& name = names[static_cast<size_t>(i)];
    outcomes[static_cast<size_t>(i)] = CheckDigest(*files_.at(name), manifest_.files.at(name));
  });
  // The map is sorted by name, so every run reports the same file first.
  for (const absl::Status& outcome : outcomes) TERCIO_RETURN_IF_ERROR(outcome);
  return absl::OkStatus();
}

absl::StatusOr<std::string> Reader::TokenizerJson() const {
  const auto found = files_.find(manifest_.tokenizer_file);
  if (found == files_.end()) {
    return absl::NotFoundError(absl::StrCat(directory_, " holds no tokenizer"));
  }
  std::string content(static_cast<size_t>(found->second->size()), '\0');
  TERCIO_RETURN_IF_ERROR(found->second->Read(0, found->second->size(), content.data()));
  // This file has no digests of blocks, so that of the whole is compared.
  if (ChecksumHex(content) != manifest_.files.at(found->first).checksum) {
    return absl::DataLossError(
        absl::StrCat(found->second->path(), ": its checksum differs from the manifest's"));
  }
  return content;
}

absl::Status Reader::CheckSlice(const v1::TensorSlice& slice) const {
  const auto found = manifest_.tensors.find(slice.tensor());
  if (found == manifest_.tensors.end()) {
    return absl::NotFoundError(absl::StrCat(directory_, " has no tensor ", slice.tensor()));
  }
  const ManifestTensor& tensor = found->second;
  const std::vector<int64_t> shape(slice.shape().begin(), slice.shape().end());
  // A slice of another shape would be read from the wrong places without notice.
  if (shape != tensor.shape) {
    return absl::InvalidArgumentError(absl::StrCat(directory_, ": tensor ", slice.tensor(),
                                                   " has a different shape than in the model"));
  }
  const int64_t columns = shape.size() == 2 ? shape[1] : 1;
  if (slice.row_begin() < 0 || slice.row_begin() > slice.row_end() || slice.row_end() > shape[0] ||
      slice.column_begin() < 0 || slice.column_begin() > slice.column_end() ||
      slice.column_end() > columns) {
    return absl::InvalidArgumentError(absl::StrCat("slice outside of tensor ", slice.tensor()));
  }
  return absl::OkStatus();
}

bool Reader::Has(const std::string& tensor) const {
  return manifest_.tensors.contains(tensor) ||
         manifest_.tensors.contains(absl::StrCat(plan::kBaseCodes, tensor));
}

absl::Status Reader::ReadSlice(const v1::TensorSlice& slice, float* out) const {
  const auto codes = manifest_.tensors.find(absl::StrCat(plan::kBaseCodes, slice.tensor()));
  if (codes != manifest_.tensors.end() && codes->second.shape.size() == 2 &&
      codes->second.shape[1] > 0) {
    return ReadDequantized(*this, slice, codes->second.shape[1], out);
  }
  TERCIO_RETURN_IF_ERROR(CheckSlice(slice));
  SliceCursor cursor(*this);
  // Parts bound the memory of blocks that wait to be verified.
  for (const v1::TensorSlice& part : DivideSlice(slice, kPartElements)) {
    TERCIO_RETURN_IF_ERROR(cursor.Read(part, out));
    out += (part.row_end() - part.row_begin()) * (part.column_end() - part.column_begin());
  }
  return absl::OkStatus();
}

absl::Status Verify(const UnverifiedBlock& block) {
  // Pages are dropped here and not by the thread that reads, which has more to do.
  if (block.last_use) {
    block.file->ForgetPages(block.offset, static_cast<int64_t>(block.bytes.size()));
  }
  // Version 2 and imports have no digests of blocks.
  if (block.digest.empty() ||
      ChecksumBytes({block.bytes.data(), block.bytes.size()}) == block.digest) {
    return absl::OkStatus();
  }
  return absl::DataLossError(absl::StrCat(block.file->path(), ": the digest of the block at byte ",
                                          block.offset, " differs from the manifest's"));
}

absl::Status SliceCursor::Read(const v1::TensorSlice& part, float* out) {
  Unverified unverified;
  TERCIO_RETURN_IF_ERROR(Read(part, out, &unverified));
  for (const UnverifiedBlock& block : unverified) TERCIO_RETURN_IF_ERROR(Verify(block));
  return absl::OkStatus();
}

absl::Status SliceCursor::Read(const v1::TensorSlice& part, float* out, Unverified* unverified) {
  TERCIO_RETURN_IF_ERROR(reader_.CheckSlice(part));
  const std::vector<Piece>& pieces = reader_.manifest_.tensors.at(part.tensor()).pieces;
  if (part.tensor() != tensor_) {
    tensor_ = part.tensor();
    // The blocks in memory belong to the tensor before.
    for (Block& block : blocks_) block.number = -1;
  }
  // Each piece keeps a block of its own, so that parts that touch several read none of them twice.
  if (blocks_.size() < pieces.size()) blocks_.resize(pieces.size());
  for (size_t i = 0; i < pieces.size(); ++i) {
    TERCIO_RETURN_IF_ERROR(ReadPiece(pieces[i], part, &blocks_[i], out, unverified));
  }
  return absl::OkStatus();
}

// Copies the intersection of the piece and the part.
absl::Status SliceCursor::ReadPiece(const Piece& piece, const v1::TensorSlice& part, Block* cache,
                                    float* out, Unverified* unverified) {
  constexpr auto kValue = static_cast<int64_t>(sizeof(float));
  const int64_t row_begin = std::max(piece.row_begin, part.row_begin());
  const int64_t row_end = std::min(piece.row_end, part.row_end());
  const int64_t column_begin = std::max(piece.column_begin, part.column_begin());
  const int64_t column_end = std::min(piece.column_end, part.column_end());
  // Most pieces of a tensor do not touch the part.
  if (row_begin >= row_end || column_begin >= column_end) return absl::OkStatus();
  const int64_t piece_width = piece.column_end - piece.column_begin;
  const int64_t part_width = part.column_end() - part.column_begin();
  // Whole rows of both lie one after the other in both.
  const bool together = column_end - column_begin == piece_width && piece_width == part_width;
  const int64_t rows = together ? row_end - row_begin : 1;
  for (int64_t row = row_begin; row < row_end; row += rows) {
    const int64_t from = (row - piece.row_begin) * piece_width + column_begin - piece.column_begin;
    float* const to =
        out + (row - part.row_begin()) * part_width + column_begin - part.column_begin();
    const int64_t bytes = rows * (column_end - column_begin) * kValue;
    // Columns between these may be another rank's: else this is the last use of the bytes.
    TERCIO_RETURN_IF_ERROR(Copy(piece, from * kValue, bytes, /*last_use=*/together, cache,
                                reinterpret_cast<char*>(to), unverified));
  }
  return absl::OkStatus();
}

// Bytes [begin, begin + bytes) of the piece: whole blocks straight into their place, the others by
// way of the cache.
absl::Status SliceCursor::Copy(const Piece& piece, int64_t begin, int64_t bytes, bool last_use,
                               Block* cache, char* out, Unverified* unverified) const {
  while (bytes > 0) {
    const int64_t number = begin / kBlockBytes;
    const int64_t inside = begin - number * kBlockBytes;
    const int64_t size = std::min(kBlockBytes, piece.bytes() - number * kBlockBytes);
    const int64_t taken = std::min(bytes, size - inside);
    // A whole block is read to its place, without a copy.
    if (taken == size && cache->number != number) {
      TERCIO_ASSIGN_OR_RETURN(UnverifiedBlock block,
                              Load(piece, number, absl::MakeSpan(out, static_cast<size_t>(size))));
      block.last_use = last_use;
      unverified->push_back(block);
    } else {
      if (cache->number != number) {
        // The block counts as read only after it was verified, so a damaged one is never used.
        cache->number = -1;
        cache->bytes.resize(static_cast<size_t>(size));
        TERCIO_ASSIGN_OR_RETURN(const UnverifiedBlock block,
                                Load(piece, number, absl::MakeSpan(cache->bytes)));
        TERCIO_RETURN_IF_ERROR(Verify(block));
        cache->number = number;
      }
      std::memcpy(out, cache->bytes.data() + inside, static_cast<size_t>(taken));
      if (last_use) reader_.files_.at(piece.file)->ForgetPages(piece.offset + begin, taken);
    }
    out += taken;
    begin += taken;
    bytes -= taken;
  }
  return absl::OkStatus();
}

absl::StatusOr<UnverifiedBlock> SliceCursor::Load(const Piece& piece, int64_t number,
                                                  absl::Span<char> block) const {
  const RandomAccessFile& file = *reader_.files_.at(piece.file);
  const int64_t begin = piece.offset + number * kBlockBytes;
  TERCIO_RETURN_IF_ERROR(file.Read(begin, static_cast<int64_t>(block.size()), block.data()));
  reader_.bytes_read_ += static_cast<int64_t>(block.size());
  std::string_view digest = piece.block_digests;
  if (!digest.empty()) {
    digest = digest.substr(static_cast<size_t>(number) * kDigestBytes, kDigestBytes);
  }
  return UnverifiedBlock{block, digest, &file, begin, false};
}

}  // namespace tercio::checkpoint
