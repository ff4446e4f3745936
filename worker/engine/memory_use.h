// Finds out how much of a rank's planned memory is used, by a fill pattern: memory that is filled
// with it before anything else shows afterwards, to the word of four bytes, which of it was
// written.
//
// The pattern is not a number in any format that buffers hold (a NaN of fp64, fp32, fp16 and bf16,
// an impossible index), so reading memory that was never written shows in the results, too. A word
// that is written with just this value counts as untouched.
// Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"

namespace tercio::engine {

inline constexpr uint32_t kPatternWord = 0xfff5fff5;

struct BufferUse {
  std::string name;
  int64_t planned_bytes = 0;
  int64_t high_water_bytes = 0;  // from its begin to the end of the last word that was written
  int64_t touched_bytes = 0;     // words that were written
};

// The use of `memory`, which held `word` everywhere; it begins where a word does.
struct Touched {
  int64_t high_water = 0;
  int64_t bytes = 0;
};
Touched TouchedOf(absl::Span<const std::byte> memory, uint32_t word);

// Buffers that are not written to their end, one a line, with what was planned and what was used;
// empty where there are none.
std::string UnusedText(absl::Span<const BufferUse> buffers);

}  // namespace tercio::engine
