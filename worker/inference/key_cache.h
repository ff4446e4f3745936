// How large the cache of keys and values of a causal model's texts is. Pure.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "proto/tercio/v1/job.pb.h"

namespace tercio::inference {

// Pages of a fixed number of positions: a text has as many as its ids so far take, from the pages
// of all.
struct CachePlan {
  int64_t pages = 0;
  int64_t page_tokens = 0;
  int64_t page_elements = 0;   // of one layer
  int64_t pages_per_text = 0;  // that the whole context takes
  int64_t layers = 0;

  int64_t tokens() const { return pages * page_tokens; }
  int64_t elements() const { return layers * pages * page_elements; }
  int64_t bytes() const { return elements() * static_cast<int64_t>(sizeof(float)); }
  // That so many ids take, of which no more than the context's have keys and values.
  int64_t PagesFor(int64_t ids) const {
    const int64_t count = (ids + page_tokens - 1) / page_tokens;
    return count < pages_per_text ? count : pages_per_text;
  }
};

// Whether texts of the model have a cache: causal ones with a single stream.
bool HasCache(const v1::ModelSpec& model);

// Room for `tokens` positions, rounded up to pages; 0: for `texts` whole contexts, which are the
// most that is ever needed. INVALID_ARGUMENT: less than one context, where the oldest text could
// not be sure to end.
absl::StatusOr<CachePlan> PlanCache(const v1::ModelSpec& model, int64_t texts, int64_t tokens);

}  // namespace tercio::inference
