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

// One thread's part of the scratch, cut into pieces. Packed ones have room for the widest vectors
// of any processor, since plans are made elsewhere; the last piece is used to its end on all.
struct AttentionPieces {
  float* keys;       // k transposed, packed: D x T
  float* values;     // forward: v packed T x D; backward: v transposed, packed D x T
  float* rows;       // backward: k packed T x D
  float* block;      // backward: a block of q or dout packed, its queries x D
  float* drop;       // T
  float* scores;     // queries of a block x T
  float* gradients;  // backward: queries of a block x T
  int64_t stride;    // between rows of scores and of gradients
};

inline int64_t CutScratch(float* base, int64_t tokens, int64_t head_dim, AttentionPieces* pieces) {
  const int64_t stride = RoundUp(tokens, 16);
  const int64_t queries = std::min(kQueryBlock, tokens);
  const int64_t by_tokens = head_dim * RoundUp(tokens, kWidestPanel);
  const int64_t by_channels = RoundUp(tokens, 16) * RoundUp(head_dim, kWidestPanel);
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
  at += (queries - 1) * stride + tokens;
  return at - base;
}

// From one thread's part of the scratch to the next one's, in elements.
inline int64_t AttentionScratchStride(int64_t tokens, int64_t head_dim) {
  AttentionPieces pieces;
  return RoundUp(CutScratch(nullptr, tokens, head_dim, &pieces), 16);
}

// Elements of scratch that AttentionForward and AttentionBackward need with up to `threads`
// threads.
inline int64_t AttentionScratch(int64_t tokens, int64_t head_dim, int threads) {
  AttentionPieces pieces;
  return (threads - 1) * AttentionScratchStride(tokens, head_dim) +
         CutScratch(nullptr, tokens, head_dim, &pieces);
}

}  // namespace tercio::kernels
