#include "checkpoint/block_digests.h"

#include <algorithm>
#include <utility>

#include "common/check.h"

namespace tercio::checkpoint {

BlockDigests::BlockDigests(std::vector<int64_t> slice_bytes)
    : slice_bytes_(std::move(slice_bytes)) {
  // The first slices may be empty, and have no block either.
  NextSlice();
}

void BlockDigests::NextSlice() {
  // A slice without bytes has no block, and beginning one would digest nothing.
  while (slice_ < slice_bytes_.size() && slice_bytes_[slice_] == 0) ++slice_;
  left_of_slice_ = slice_ < slice_bytes_.size() ? slice_bytes_[slice_] : 0;
  left_of_block_ = std::min(left_of_slice_, kBlockBytes);
}

void BlockDigests::Update(std::string_view bytes) {
  while (!bytes.empty()) {
    // More bytes than the slices have would belong to no block: the caller has mixed up files.
    TERCIO_CHECK(left_of_block_ > 0);
    const size_t taken = std::min(bytes.size(), static_cast<size_t>(left_of_block_));
    block_.Update(bytes.substr(0, taken));
    bytes.remove_prefix(taken);
    left_of_block_ -= static_cast<int64_t>(taken);
    left_of_slice_ -= static_cast<int64_t>(taken);
    if (left_of_block_ > 0) continue;
    digests_ += block_.Bytes();
    block_.Reset();
    // The last block of a slice is shorter, so that no block belongs to two slices.
    left_of_block_ = std::min(left_of_slice_, kBlockBytes);
    if (left_of_slice_ > 0) continue;
    ++slice_;
    NextSlice();
  }
}

}  // namespace tercio::checkpoint
