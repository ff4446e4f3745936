// Values as the chunks of bytes that carry them: for streams to the coordinator's checkpoints and
// to the agents' snapshots. Pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/types/span.h"

namespace tercio::trainer {

using ValueParts = std::vector<absl::Span<const float>>;

inline int64_t BytesOf(const ValueParts& parts) {
  int64_t bytes = 0;
  for (const absl::Span<const float> part : parts) {
    bytes += static_cast<int64_t>(part.size() * sizeof(float));
  }
  return bytes;
}

// Views of the bytes of the parts, one after the other, of at most 1 MiB each.
inline std::vector<std::string_view> ChunksOf(const ValueParts& parts) {
  constexpr size_t kMostBytes = size_t{1} << 20;
  std::vector<std::string_view> chunks;
  for (const absl::Span<const float> part : parts) {
    std::string_view bytes(reinterpret_cast<const char*>(part.data()), part.size() * sizeof(float));
    for (; !bytes.empty(); bytes.remove_prefix(std::min(kMostBytes, bytes.size()))) {
      chunks.push_back(bytes.substr(0, kMostBytes));
    }
  }
  return chunks;
}

}  // namespace tercio::trainer
