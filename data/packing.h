// Which documents share a sequence: first fit in their order (Johnson 1973), with a bounded number
// of open sequences. Each document goes to the first open sequence that has room for it, else opens
// one behind the last. Where more than kOpenSequences are open, that with the least room, of
// several the first, is closed: nothing else is added to it; a full one closes by itself. Sequences
// are in the order in which they were opened, and documents within one in theirs.
//
// The result is a function of lengths and capacity alone: the same on every rank and node, in every
// layout and epoch, and after each resumption. All of it is pure. Time: documents times
// kOpenSequences at most.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace tercio::data {

// A change is another order of samples, and so belongs to the digest of a job's data.
inline constexpr int64_t kOpenSequences = 64;

// Sequence s holds documents[begins[s]] up to, but without, documents[begins[s + 1]].
struct Packing {
  std::vector<int64_t> documents;  // each of them once
  std::vector<int64_t> begins = {0};

  int64_t sequences() const { return static_cast<int64_t>(begins.size()) - 1; }
  // REQUIRES: 0 <= sequence < sequences().
  absl::Span<const int64_t> DocumentsOf(int64_t sequence) const {
    const auto at = static_cast<size_t>(sequence);
    return absl::MakeConstSpan(documents).subspan(static_cast<size_t>(begins[at]),
                                                  static_cast<size_t>(begins[at + 1] - begins[at]));
  }
};

// `lengths`: positions of each document. REQUIRES: each in [1, capacity].
Packing PackDocuments(absl::Span<const int32_t> lengths, int64_t capacity);

}  // namespace tercio::data
