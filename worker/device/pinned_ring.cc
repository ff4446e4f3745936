#include "worker/device/pinned_ring.h"

#include "common/check.h"
#include "common/status_macros.h"
#include "worker/device/cuda_status.h"

namespace tercio::device {
namespace {

constexpr int64_t kAlignment = 64;

}  // namespace

PinnedRing::~PinnedRing() {
  for (const Piece& piece : used_) cudaEventDestroy(piece.event);
  for (const cudaEvent_t event : idle_) cudaEventDestroy(event);
}

absl::Status PinnedRing::WaitForFirst() {
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
  used_.push_back({taken_begin_, next_, event});
  return CudaStatus(cudaEventRecord(event, stream), "recording an event");
}

}  // namespace tercio::device
