#include "worker/engine/memory_use.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace tercio::engine {

Touched TouchedOf(absl::Span<const std::byte> memory, uint32_t word) {
  Touched touched;
  constexpr size_t kWord = sizeof(word);
  for (size_t at = 0; at < memory.size(); at += kWord) {
    // Buffers need not end with a whole word.
    const size_t bytes = std::min(kWord, memory.size() - at);
    // Memory of any type is compared, so its bytes are not read as words.
    if (std::memcmp(memory.data() + at, &word, bytes) == 0) continue;
    touched.high_water = static_cast<int64_t>(at + bytes);
    touched.bytes += static_cast<int64_t>(bytes);
  }
  return touched;
}

std::string UnusedText(absl::Span<const BufferUse> buffers) {
  std::string text;
  for (const BufferUse& buffer : buffers) {
    // Only the end counts: alignment leaves holes in buffers that are in full use.
    if (buffer.high_water_bytes >= buffer.planned_bytes) continue;
    absl::StrAppend(&text, buffer.name, ": ", buffer.planned_bytes, " bytes are planned, ");
    if (buffer.high_water_bytes == 0) {
      absl::StrAppend(&text, "none is touched\n");
    } else {
      absl::StrAppend(&text, "the first ", buffer.high_water_bytes, " are touched\n");
    }
  }
  return text;
}

}  // namespace tercio::engine
