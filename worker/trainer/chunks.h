// Values as the messages that carry them: chunks of bytes, which may span slices. For streams to
// the coordinator's checkpoints and to the agents' snapshots.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"

namespace tercio {

using ValueParts = std::vector<absl::Span<const float>>;

inline int64_t BytesOf(const ValueParts& parts) {
  int64_t bytes = 0;
  for (const absl::Span<const float> part : parts) {
    bytes += static_cast<int64_t>(part.size() * sizeof(float));
  }
  return bytes;
}

// The bytes of the parts, one after the other. The values must outlive it. Not thread-safe.
class ChunkReader {
 public:
  static constexpr size_t kMostBytes = 1 << 20;

  explicit ChunkReader(ValueParts parts) : parts_(std::move(parts)) {}

  // Puts the next bytes into *chunk; false when there are none.
  bool Next(std::string* chunk) {
    chunk->clear();
    while (part_ < parts_.size() && chunk->size() < kMostBytes) {
      const size_t there = parts_[part_].size() * sizeof(float) - at_;
      const size_t taken = std::min(there, kMostBytes - chunk->size());
      chunk->append(reinterpret_cast<const char*>(parts_[part_].data()) + at_, taken);
      at_ += taken;
      if (taken < there) break;
      ++part_;
      at_ = 0;
    }
    return !chunk->empty();
  }

 private:
  const ValueParts parts_;
  size_t part_ = 0;
  size_t at_ = 0;  // bytes, in the part
};

}  // namespace tercio
