// Self-attention: declarations. Pure.
#pragma once

#include "model/adapters.h"
#include "model/description.h"

namespace tercio::model {

// Order of its fields; with head norms their input and statistics follow.
struct AttentionFields {
  enum { kQkv, kResult, kLogSumExp, kRawQkv, kHeadRstd };
};
struct AttentionProducts {
  enum { kQkv, kOutput };
};

// Widths on a tensor rank.
struct AttentionWidths {
  int64_t heads, key_heads, head_dim;
  int64_t queries, keys;  // elements of a row
  int64_t qkv() const { return queries + 2 * keys; }
};
// REQUIRES: tensor divides heads and key heads.
AttentionWidths WidthsOf(const AttentionOptions& options, int tensor);

BlockDescription Describe(const AttentionOptions& options, int tensor);
std::vector<AdaptablePart> AdaptablePartsOf(const AttentionOptions& options);

}  // namespace tercio::model
