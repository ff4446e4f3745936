#include "worker/engine/paged_update.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/checksum.h"
#include "common/status_macros.h"

namespace tercio::engine {
namespace {

// 48 MiB of weights and both moments: enough for the rate of any disk, and little beside a model.
constexpr int64_t kPieceElements = int64_t{4} << 20;

kernels::AdamWTensor Slice(const kernels::AdamWTensor& tensor, int64_t begin, int64_t count) {
  kernels::AdamWTensor part = tensor;
  part.parameter += begin;
  part.gradient += begin;
  part.m += begin;
  part.v += begin;
  if (part.rounded != nullptr) part.rounded += begin;
  part.count = count;
  return part;
}

}  // namespace

std::vector<std::vector<kernels::AdamWTensor>> PiecesOf(absl::Span<const kernels::AdamWTensor> list,
                                                        int64_t most) {
  std::vector<std::vector<kernels::AdamWTensor>> pieces;
  int64_t room = 0;
  for (const kernels::AdamWTensor& tensor : list) {
    for (int64_t at = 0; at < tensor.count;) {
      if (room == 0) {
        pieces.emplace_back();
        room = most;
      }
      const int64_t count = std::min(room, tensor.count - at);
      pieces.back().push_back(Slice(tensor, at, count));
      at += count;
      room -= count;
    }
  }
  return pieces;
}

void PagedUpdate::Cut(absl::Span<const kernels::AdamWTensor> list) {
  if (pieces_.empty()) pieces_ = PiecesOf(list, kPieceElements);
}

void PagedUpdate::ReadAhead(absl::Span<const kernels::AdamWTensor> list) {
  Cut(list);
  ReadAheadPiece(0);
}

void PagedUpdate::ReadAheadPiece(size_t piece) const {
  if (piece >= pieces_.size()) return;
  ForParts(pieces_[piece],
           [this](const float* part, int64_t count) { arena_->ReadAhead(part, count); });
}

absl::Status PagedUpdate::Run(absl::Span<const kernels::AdamWTensor> list,
                              absl::FunctionRef<void(absl::Span<kernels::AdamWTensor>)> update) {
  Cut(list);
  const bool is_known = !checksums_.empty();
  checksums_.resize(pieces_.size());
  for (size_t i = 0; i < pieces_.size(); ++i) {
    ReadAheadPiece(i + 1);
    if (is_known) TERCIO_RETURN_IF_ERROR(Check(i));
    update(absl::MakeSpan(pieces_[i]));
    checksums_[i] = ChecksumOf(pieces_[i]);
    ForParts(pieces_[i],
             [this](const float* part, int64_t count) { arena_->WriteBehind(part, count); });
  }
  return absl::OkStatus();
}

absl::Status PagedUpdate::Verify() const {
  for (size_t i = 0; i < checksums_.size(); ++i) TERCIO_RETURN_IF_ERROR(Check(i));
  return absl::OkStatus();
}

void PagedUpdate::ForParts(const Piece& piece,
                           absl::FunctionRef<void(const float*, int64_t)> body) const {
  for (const kernels::AdamWTensor& tensor : piece) {
    for (const float* part : {tensor.parameter, tensor.m, tensor.v}) {
      if (arena_->IsOnDisk(part)) body(part, tensor.count);
    }
  }
}

std::string PagedUpdate::ChecksumOf(const Piece& piece) const {
  Checksum checksum;
  ForParts(piece, [&](const float* part, int64_t count) {
    checksum.Update(
        {reinterpret_cast<const char*>(part), static_cast<size_t>(count) * sizeof(float)});
  });
  return checksum.Bytes();
}

absl::Status PagedUpdate::Check(size_t piece) const {
  if (ChecksumOf(pieces_[piece]) == checksums_[piece]) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("offload: piece ", piece, " of ", pieces_.size(),
                   " of the optimizer's state is not what the last step wrote to the scratch file: "
                   "its disk, or the machine's memory, is faulty"));
}

}  // namespace tercio::engine
