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

// One thread's part of the scratch, cut into pieces. The forward pass uses the first three.
struct AttentionPieces {
  float* keys;       // k transposed, packed: D x T
  float* values;     // forward: v packed T x D; backward: v transposed, packed D x T
  float* scores;     // kQueryBlock x T
  float* gradients;  // kQueryBlock x T
  float* rows;       // k packed T x D
  float* drop;       // T
  float* block;      // a block of q or dout packed: its queries x D
  int64_t stride;    // of scores
};

inline int64_t CutScratch(float* base, int64_t tokens, int64_t head_dim, AttentionPieces* pieces) {
  const int64_t stride = RoundUp(tokens, 16);
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
  pieces->scores = take(kQueryBlock * stride);
  pieces->gradients = take(kQueryBlock * stride);
  pieces->rows = take(packed);
  pieces->drop = take(stride);
  pieces->block = take(std::min(kQueryBlock, tokens) * RoundUp(head_dim, kWidestPanel));
  return at - base;
}

// Elements of scratch that AttentionForward and AttentionBackward need with up to `threads`
// threads.
inline int64_t AttentionScratch(int64_t tokens, int64_t head_dim, int threads) {
  AttentionPieces pieces;
  return threads * CutScratch(nullptr, tokens, head_dim, &pieces);
}

}  // namespace tercio::kernels
