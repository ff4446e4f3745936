// The scratch of blocked attention on the CPU: sizes for the memory table, and how a thread cuts
// its part.
#pragma once

#include <algorithm>
#include <cstdint>

namespace tercio::kernels {

inline constexpr int64_t kQueryBlock = 64;
inline constexpr int64_t kWidestPanel = 32;
inline constexpr int64_t kDepthBlock = 256;

inline int64_t RoundUp(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

// Elements of a page of keys and values (KeyPages), with room for the widest vectors. For each key
// head: the keys of a panel's positions side by side, channel by channel, panel after panel; then
// the values of a panel's channels side by side, position by position, panel after panel.
inline int64_t PageElements(int64_t page_tokens, int64_t key_heads, int64_t head_dim) {
  return key_heads * page_tokens * (head_dim + RoundUp(head_dim, kWidestPanel));
}

// One thread's part of the scratch, cut into pieces. Packed ones have room for the widest vectors
// of any processor, since plans are made elsewhere; the last piece is used to its end on all.
struct AttentionPieces {
  float* keys;       // k transposed, packed: D x S, the key tokens
  float* values;     // forward: v packed S x D; backward: v transposed, packed D x S
  float* rows;       // backward: k packed S x D
  float* block;      // backward: a block of q or dout packed, its queries x D
  float* drop;       // S
  float* scores;     // queries of a block x S
  float* gradients;  // backward: queries of a block x S
  int64_t stride;    // between rows of scores and of gradients
};

// What of a call decides how much scratch it takes.
struct AttentionScratchShape {
  int64_t tokens, head_dim;
  int64_t key_tokens = 0;  // 0: tokens
  int64_t keys() const { return key_tokens == 0 ? tokens : key_tokens; }
};

template <typename Args>
AttentionScratchShape ScratchShapeOf(const Args& call) {
  return {.tokens = call.tokens, .head_dim = call.head_dim, .key_tokens = call.key_tokens};
}

inline int64_t CutScratch(float* base, const AttentionScratchShape& shape,
                          AttentionPieces* pieces) {
  const int64_t keys = shape.keys();
  const int64_t head_dim = shape.head_dim;
  const int64_t stride = RoundUp(keys, 16);
  const int64_t queries = std::min(kQueryBlock, shape.tokens);
  const int64_t by_tokens = head_dim * RoundUp(keys, kWidestPanel);
  const int64_t by_channels = RoundUp(keys, 16) * RoundUp(head_dim, kWidestPanel);
  const int64_t packed = RoundUp(std::max(by_tokens, by_channels), 16);
  float* at = base;
  const auto take = [&at](int64_t count) {
    float* result = at;
    at += RoundUp(count, 16);
    return result;
  };
  pieces->stride = stride;
  pieces->keys = take(packed);
  pieces->values = take(packed);
  pieces->rows = take(packed);
  pieces->block = take(queries * RoundUp(head_dim, kWidestPanel));
  pieces->drop = take(stride);
  pieces->scores = take(queries * stride);
  pieces->gradients = at;
  at += (queries - 1) * stride + keys;
  return at - base;
}

// From one thread's part of the scratch to the next one's, in elements.
inline int64_t AttentionScratchStride(const AttentionScratchShape& shape) {
  AttentionPieces pieces;
  return RoundUp(CutScratch(nullptr, shape, &pieces), 16);
}

// Elements of scratch that AttentionForward and AttentionBackward need with up to `threads`
// threads. No call with fewer tokens, fewer key tokens or smaller heads needs more.
inline int64_t AttentionScratch(const AttentionScratchShape& shape, int threads) {
  AttentionPieces pieces;
  return (threads - 1) * AttentionScratchStride(shape) + CutScratch(nullptr, shape, &pieces);
}

}  // namespace tercio::kernels
