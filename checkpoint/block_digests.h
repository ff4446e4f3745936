// Digests of blocks: a reader of a part of a checkpoint verifies just the blocks that the part lies
// in, without reading all of it.
//
// The bytes of a slice are cut into blocks of kBlockBytes from the slice's first byte on, the last
// one may be shorter. Each has 16 bytes of XXH3 (common/checksum.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/checksum.h"

namespace tercio::checkpoint {

inline constexpr int64_t kBlockBytes = int64_t{4} << 20;
inline constexpr size_t kDigestBytes = 16;

// How many blocks a slice of `bytes` has.
inline int64_t BlocksOf(int64_t bytes) { return (bytes + kBlockBytes - 1) / kBlockBytes; }

// Digests the bytes of several slices as they arrive, one after the other. Threads: one.
class BlockDigests {
 public:
  explicit BlockDigests(std::vector<int64_t> slice_bytes);

  // REQUIRES: not more in total than the slices have.
  void Update(std::string_view bytes);
  // The digests of all blocks, slice after slice. REQUIRES: every byte has been given.
  const std::string& digests() const { return digests_; }

 private:
  void NextSlice();

  const std::vector<int64_t> slice_bytes_;
  size_t slice_ = 0;
  int64_t left_of_slice_ = 0;
  int64_t left_of_block_ = 0;
  Checksum block_;
  std::string digests_;
};

}  // namespace tercio::checkpoint
