// Attention to the rows of the model's first stream: declarations. Pure.
#pragma once

#include "model/adapters.h"
#include "model/description.h"

namespace tercio::model {

// Order of its fields; keys and values lie side by side, of all rows of the first stream.
struct CrossAttentionFields {
  enum { kQueries, kKeysAndValues, kResult, kLogSumExp };
};
struct CrossAttentionProducts {
  enum { kQuery, kKeysAndValues, kOutput };
};

BlockDescription Describe(const CrossAttentionOptions& options, int tensor);
std::vector<AdaptablePart> AdaptablePartsOf(const CrossAttentionOptions& options);

}  // namespace tercio::model
