// Updates of weights whose state lies in a scratch file (plan/offload.h): in pieces, the next of
// which is read while one is computed, and the last one written. A checksum of each piece, kept in
// memory from its update to the next one, finds what the disk has changed.
//
// Threads: that of the engine. REQUIRES: operations of the compute stream run when they are called.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/ops.h"
#include "worker/engine/arena.h"

namespace tercio::engine {

// The list in runs of at most `most` elements each; tensors that are larger are cut.
std::vector<std::vector<kernels::AdamWTensor>> PiecesOf(absl::Span<const kernels::AdamWTensor> list,
                                                        int64_t most);

class PagedUpdate {
 public:
  explicit PagedUpdate(const Arena& arena) : arena_(&arena) {}

  // Starts to read the first pieces of the list.
  void ReadAhead(absl::Span<const kernels::AdamWTensor> list);

  // Calls `update` for each piece of the list, which is the same in each step. DATA_LOSS: a piece
  // is not what the last update wrote.
  absl::Status Run(absl::Span<const kernels::AdamWTensor> list,
                   absl::FunctionRef<void(absl::Span<kernels::AdamWTensor>)> update);
  // The same for all pieces, without an update: before they are saved.
  absl::Status Verify() const;
  // The state was written by something else: it is as it should be.
  void Forget() { checksums_.clear(); }

 private:
  using Piece = std::vector<kernels::AdamWTensor>;
  // The parts of a piece that are in the file.
  void ForParts(const Piece& piece,
                absl::FunctionRef<void(const float*, int64_t count)> body) const;
  std::string ChecksumOf(const Piece& piece) const;
  absl::Status Check(size_t piece) const;

  void Cut(absl::Span<const kernels::AdamWTensor> list);
  void ReadAheadPiece(size_t piece) const;

  const Arena* arena_;
  std::vector<Piece> pieces_;
  std::vector<std::string> checksums_;  // by piece; empty: none yet
};

}  // namespace tercio::engine
