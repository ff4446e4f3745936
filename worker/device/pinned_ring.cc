#include "worker/device/pinned_ring.h"

#include "common/check.h"
#include "common/status_macros.h"
#include "worker/device/cuda_status.h"

namespace tercio::device {
namespace {

// A cache line: neighbouring pieces, one being filled and one copied, share none.
constexpr int64_t kAlignment = 64;

}  // namespace

PinnedRing::~PinnedRing() {
  for (const Piece& piece : used_) cudaEventDestroy(piece.event);
  for (const cudaEvent_t event : idle_) cudaEventDestroy(event);
}

absl::Status PinnedRing::WaitForFirst() {
  // Work on a stream ends in order, so the oldest piece is free first.
  const Piece first = used_.front();
  TERCIO_RETURN_IF_ERROR(
      CudaStatus(cudaEventSynchronize(first.event), "waiting for a copy from or to the host"));
  idle_.push_back(first.event);
  used_.pop_front();
  return absl::OkStatus();
}

absl::Status PinnedRing::Take(int64_t bytes, std::byte** piece) {
  TERCIO_CHECK(bytes > 0 && bytes <= most());
  // Pieces are used in ring order: those in the way are the oldest.
  if (next_ + bytes > bytes_) {
    while (!used_.empty() && used_.front().begin >= next_) {
      TERCIO_RETURN_IF_ERROR(WaitForFirst());
    }
    next_ = 0;
  }
  while (!used_.empty() && used_.front().begin < next_ + bytes && next_ < used_.front().end) {
    TERCIO_RETURN_IF_ERROR(WaitForFirst());
  }
  *piece = memory_ + next_;
  taken_begin_ = next_;
  // This may lie beyond the ring's end, where the next Take starts over.
  next_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  return absl::OkStatus();
}

absl::Status PinnedRing::Release(cudaStream_t stream) {
  if (idle_.empty()) {
    cudaEvent_t made = nullptr;
    TERCIO_RETURN_IF_ERROR(
        CudaStatus(cudaEventCreateWithFlags(&made, cudaEventDisableTiming), "creating an event"));
    idle_.push_back(made);
  }
  const cudaEvent_t event = idle_.back();
  idle_.pop_back();
  // The event is recorded behind the copy, so the piece is free once it is reached.
  used_.push_back({taken_begin_, next_, event});
  return CudaStatus(cudaEventRecord(event, stream), "recording an event");
}

}  // namespace tercio::device
