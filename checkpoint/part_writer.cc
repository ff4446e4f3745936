#include "checkpoint/part_writer.h"

#include <unistd.h>

#include <filesystem>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/file.h"
#include "common/status_macros.h"

namespace tercio::checkpoint {
namespace {

// The digests of blocks restart at each slice, so a reader of one slice needs no other.
std::vector<int64_t> SliceBytes(const RankFile& file) {
  std::vector<int64_t> bytes;
  for (const TensorEntry& entry : file.entries) bytes.push_back(entry.end - entry.begin);
  return bytes;
}

std::string FolderOf(const std::string& path) {
  return std::filesystem::path(path).parent_path().string();
}

}  // namespace

PartWriter::PartWriter(std::string path, const RankFile& file)
    : path_(std::move(path)), expected_bytes_(file.data_bytes()), blocks_(SliceBytes(file)) {}

absl::StatusOr<std::unique_ptr<PartWriter>> PartWriter::Create(std::string path,
                                                               const Slices& slices) {
  // The header follows from the slices, so an impossible slice is found before a file exists.
  TERCIO_ASSIGN_OR_RETURN(const RankFile file, RankFileOf(slices));
  TERCIO_RETURN_IF_ERROR(MakeDirectories(FolderOf(path)));
  std::unique_ptr<PartWriter> writer(new PartWriter(std::move(path), file));
  // A name is used once, so an existing file is an error. The data are not read again soon, and
  // would only push others out of the page cache. The size is reserved, so that a full disk shows
  // now.
  TERCIO_ASSIGN_OR_RETURN(
      writer->file_,
      AppendFile::Create(writer->path_, AppendFile::Existing::kRefuse,
                         AppendFile::PageCache::kBypass,
                         static_cast<int64_t>(file.header.size()) + writer->expected_bytes_));
  // The digest of the file covers the header as well.
  writer->checksum_.Update(file.header);
  TERCIO_RETURN_IF_ERROR(writer->file_->Append(file.header));
  return writer;
}

PartWriter::~PartWriter() {
  // A closed file belongs to the checkpoint, and only the store removes it.
  if (file_ == nullptr || closed_) return;
  file_ = nullptr;
  unlink(path_.c_str());
}

absl::Status PartWriter::Append(std::string_view bytes) {
  const int64_t appended = appended_bytes_ + static_cast<int64_t>(bytes.size());
  // This is refused before any of the bytes is written.
  if (appended > expected_bytes_) {
    return absl::InvalidArgumentError(absl::StrCat(path_, ": more bytes than its slices hold"));
  }
  checksum_.Update(bytes);
  blocks_.Update(bytes);
  TERCIO_RETURN_IF_ERROR(file_->Append(bytes));
  appended_bytes_ = appended;
  return absl::OkStatus();
}

absl::StatusOr<v1::UploadEnd> PartWriter::Close() {
  if (appended_bytes_ != expected_bytes_) {
    return absl::DataLossError(absl::StrCat(path_, ": got ", appended_bytes_.load(),
                                            " bytes, but its slices hold ", expected_bytes_));
  }
  TERCIO_RETURN_IF_ERROR(file_->Close());
  // The file's name must be on the disk, too, before a manifest may refer to it.
  TERCIO_RETURN_IF_ERROR(SyncPath(FolderOf(path_)));
  closed_ = true;
  v1::UploadEnd end;
  end.set_bytes(appended_bytes_);
  end.set_checksum(checksum_.Hex());
  end.set_block_digests(blocks_.digests());
  return end;
}

absl::StatusOr<Manifest> PartOfManifest(const std::string& name, const Slices& slices,
                                        const v1::UploadEnd& end) {
  TERCIO_ASSIGN_OR_RETURN(const RankFile file, RankFileOf(slices));
  const auto header_bytes = static_cast<int64_t>(file.header.size());
  // The numbers come from a rank, which the store does not trust.
  if (end.bytes() != file.data_bytes() || end.checksum().size() != 2 * kDigestBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": ", end.bytes(), " bytes, but its slices hold ", file.data_bytes(),
                     ", or the checksum is missing"));
  }
  Manifest part;
  part.files[name] = {header_bytes + end.bytes(), end.checksum()};
  // The digests come without separators, in the order of the slices.
  std::string_view digests = end.block_digests();
  for (int i = 0; i < slices.size(); ++i) {
    const v1::TensorSlice& slice = slices.Get(i);
    ManifestTensor& tensor = part.tensors[slice.tensor()];
    tensor.shape.assign(slice.shape().begin(), slice.shape().end());
    Piece piece = {name,
                   header_bytes + file.entries[static_cast<size_t>(i)].begin,
                   slice.row_begin(),
                   slice.row_end(),
                   slice.column_begin(),
                   slice.column_end(),
                   ""};
    const size_t of_piece = static_cast<size_t>(BlocksOf(piece.bytes())) * kDigestBytes;
    piece.block_digests = digests.substr(0, of_piece);
    digests.remove_prefix(piece.block_digests.size());
    if (piece.block_digests.size() != of_piece) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": a block has no digest"));
    }
    tensor.pieces.push_back(std::move(piece));
  }
  if (!digests.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": more digests than blocks"));
  }
  return part;
}

}  // namespace tercio::checkpoint
