// Pinned memory through which other memory of the host is copied from and to a GPU, without waiting
// for the copy: a ring whose pieces are reused once the stream has passed them.
//
// Threads: the one that feeds the stream. Errors are CUDA's.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "absl/status/status.h"

namespace tercio::device {

class PinnedRing {
 public:
  PinnedRing(std::byte* memory, int64_t bytes) : memory_(memory), bytes_(bytes) {}
  // REQUIRES: the stream has been synchronized.
  ~PinnedRing();
  PinnedRing(const PinnedRing&) = delete;
  PinnedRing& operator=(const PinnedRing&) = delete;

  // The largest size of a piece.
  int64_t most() const { return bytes_ / 4; }

  // A free piece of `bytes`; waits for the stream if all are in use. REQUIRES: 0 < bytes <= most().
  absl::Status Take(int64_t bytes, std::byte** piece);
  // The work so far on the stream is the last that uses the piece taken last.
  absl::Status Release(cudaStream_t stream);

 private:
  struct Piece {
    int64_t begin, end;
    cudaEvent_t event;
  };
  absl::Status WaitForFirst();

  std::byte* const memory_;
  const int64_t bytes_;
  int64_t next_ = 0;
  int64_t taken_begin_ = 0;
  std::deque<Piece> used_;  // oldest first
  std::vector<cudaEvent_t> idle_;
};

}  // namespace tercio::device
