// What a server counts, for its page of metrics.
//
// Threads: any.
#pragma once

#include <atomic>
#include <cstdint>

#include "common/metrics/histogram.h"

namespace tercio::serve {

struct ServingFigures {
  std::atomic<int64_t> prompt_tokens{0};
  std::atomic<int64_t> new_tokens{0};
  // As of the last pass (TextBatch::CacheUse).
  std::atomic<int64_t> cache_pages{0};
  std::atomic<int64_t> used_cache_pages{0};
  std::atomic<int64_t> reused_prompt_tokens{0};
  std::atomic<int64_t> evicted_texts{0};
  Histogram first_token{"tercio_serve_first_token_seconds"};  // since the request was read
  Histogram next_token{"tercio_serve_next_token_seconds"};
};

}  // namespace tercio::serve
