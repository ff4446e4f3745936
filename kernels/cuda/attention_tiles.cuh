// The building blocks of attention's kernels, forward and backward: how work is cut, which keys a
// query sees, scores, dropout, and products of tiles in shared memory.
//
// Launch geometry: a block of 8 warps has a tile of 32 rows of one head of one sequence: queries,
// or, for the gradients of keys and values, keys of a key head. A warp has four rows of the tile.
// The block walks tiles of 32 of the others (keys, or the queries of all query heads of the group,
// ascending); a lane has one of them while scores are made, and every 32nd channel while they are
// multiplied with values. Tiles begin at multiples of 32, so a row's bits depend on neither the
// rows beside it nor first_query, and every sum has one order: nothing is atomic. Kernels name the
// blocks that an SM is to hold at least where the compiler likes so many that it would spill.
#pragma once

#include <cmath>

#include "common/check.h"
#include "kernels/cuda/primitives/groups.cuh"
#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/primitives/reduce.cuh"
#include "kernels/ops.h"
#include "kernels/random.h"

namespace tercio::kernels::cuda {

inline constexpr int kTile = 32;  // rows, and others: a lane each
inline constexpr int kWarps = 8;
inline constexpr int kTileThreads = kWarps * kTile;
inline constexpr int kOwn = kTile / kWarps;  // rows of a warp
inline constexpr int kMaxHeadDim = 256;

// Dropout of the attention matrix.
struct ScoreDropout {
  bool on;
  PhiloxKey key;
  uint32_t threshold;
  float multiplier;
  uint32_t tag;
  uint32_t first_sequence;
};
inline ScoreDropout MakeScoreDropout(const Dropout& dropout, int64_t first_head) {
  if (!(dropout.probability > 0)) return {false, {}, 0, 1, 0, 0};
  return {true,
          MakeKey(dropout.seed, dropout.step),
          DropThreshold(dropout.probability),
          1.0f / (1.0f - dropout.probability),
          kSiteAttention | dropout.layer << 4 | static_cast<uint32_t>(first_head) << 16,
          static_cast<uint32_t>(dropout.first_sequence)};
}

// The parameters that both directions need.
struct Heads {
  int64_t stride, key_stride;
  int64_t tokens, key_tokens, heads, group;
  int head_dim;
  float scale;
  float softcap;   // 0: none
  int64_t window;  // 0: none
  bool causal;
  const int32_t* lengths;
  const int32_t* document_starts;  // null: a sequence is one document
  const int32_t* bucket;           // of relative positions, or null
  int64_t buckets;
  ScoreDropout dropout;
  // Null, or a word of the device: if it is 0 when the kernel begins, it does nothing.
  const uint32_t* wanted;
};

template <typename Args>
Heads MakeHeads(const Args& a, const uint32_t* wanted) {
  TERCIO_CHECK_LE(a.head_dim, kMaxHeadDim);
  TERCIO_CHECK_EQ(a.heads % a.group, 0);
  TERCIO_CHECK(a.causal || (a.window == 0 && a.document_starts == nullptr));
  TERCIO_CHECK(a.bias.weight == nullptr || a.document_starts == nullptr);
  TERCIO_CHECK(KeyTokensOf(a) == a.tokens || (!a.causal && a.bias.weight == nullptr));
  TERCIO_CHECK(a.bias.weight == nullptr ||
               (a.bias.buckets <= kMostBiasBuckets && !(a.softcap > 0)));
  return {a.stride,
          KeyStrideOf(a),
          a.tokens,
          KeyTokensOf(a),
          a.heads,
          a.group,
          static_cast<int>(a.head_dim),
          ScaleOf(a),
          a.softcap,
          a.window,
          a.causal,
          a.lengths,
          a.document_starts,
          a.bias.weight == nullptr ? nullptr : a.bias.bucket,
          a.bias.buckets,
          MakeScoreDropout(a.dropout, a.first_head),
          wanted};
}

// The same for all threads.
__device__ __forceinline__ bool IsWanted(const Heads& h) {
  return h.wanted == nullptr || *h.wanted != 0;
}

// Keys that `query` attends to end here: behind itself, or behind its sequence.
__device__ __forceinline__ int64_t KeysOf(const Heads& h, int64_t sequence, int64_t query) {
  if (h.causal) return query + 1;
  return h.lengths == nullptr ? h.key_tokens : h.lengths[sequence];
}

// The first position of a position's document. Those that fill up the last tile have none.
__device__ __forceinline__ int64_t DocumentOf(const Heads& h, int64_t sequence, int64_t position) {
  if (h.document_starts == nullptr || position >= h.tokens) return 0;
  return h.document_starts[sequence * h.tokens + position];
}

// The first of them: a window has the last of those of the document up to the query.
__device__ __forceinline__ int64_t FirstKeyOf(const Heads& h, int64_t sequence, int64_t query) {
  const int64_t window = h.window > 0 && query >= h.window ? query + 1 - h.window : 0;
  const int64_t document = DocumentOf(h, sequence, query);
  return document > window ? document : window;
}
__device__ __forceinline__ bool Sees(const Heads& h, int64_t sequence, int64_t query, int64_t key) {
  return key < KeysOf(h, sequence, query) && key >= FirstKeyOf(h, sequence, query);
}
// The tile of keys that a tile of queries from `first` on begins with: no query's keys begin before
// those of the query before it.
__device__ __forceinline__ int64_t FirstTileOf(const Heads& h, int64_t sequence, int64_t first) {
  return FirstKeyOf(h, sequence, first) / kTile * kTile;
}

// What the distance of a query and a key adds to their score.
template <typename T>
__device__ __forceinline__ float BiasOf(const Heads& h, const T* weight, int64_t head,
                                        int64_t query, int64_t key) {
  if (h.bucket == nullptr || query >= h.tokens) return 0.0f;
  return ToFloat(weight[head * h.buckets + h.bucket[key - query + h.tokens - 1]]);
}

// The score of a product of a query and a key.
__device__ __forceinline__ float ScoreOf(const Heads& h, float product) {
  const float score = product * h.scale;
  return h.softcap > 0 ? h.softcap * tanhf(score / h.softcap) : score;
}
// The gradient of the product, from that of its score.
__device__ __forceinline__ float ThroughScore(const Heads& h, float gradient, float score) {
  const float scaled = gradient * h.scale;
  if (!(h.softcap > 0)) return scaled;
  const float share = score / h.softcap;
  return scaled * fmaf(-share, share, 1.0f);
}

// Random numbers of four neighbouring keys; `key` is one of them.
__device__ __forceinline__ PhiloxBlock DropBits(const ScoreDropout& d, int64_t head,
                                                int64_t sequence, int64_t query, int64_t key) {
  return Philox(d.key, {static_cast<uint32_t>(key / 4), static_cast<uint32_t>(query),
                        d.first_sequence + static_cast<uint32_t>(sequence),
                        d.tag + (static_cast<uint32_t>(head) << 16)});
}

// 0 or the multiplier for one element of the attention matrix.
__device__ __forceinline__ float Drop(const Heads& h, int64_t head, int64_t sequence, int64_t query,
                                      int64_t key) {
  if (!h.dropout.on) return 1.0f;
  const PhiloxBlock bits = DropBits(h.dropout, head, sequence, query, key);
  return bits[static_cast<size_t>(key % 4)] >= h.dropout.threshold ? h.dropout.multiplier : 0.0f;
}

// The first element of a head in its sequence, and that of a key head.
__device__ __forceinline__ int64_t At(const Heads& h, int64_t sequence, int64_t head) {
  return sequence * h.tokens * h.stride + head * h.head_dim;
}
__device__ __forceinline__ int64_t KeysAt(const Heads& h, int64_t sequence, int64_t key_head) {
  return sequence * h.key_tokens * h.key_stride + key_head * h.head_dim;
}

// Rows [first, first + kTile) of a head as floats, zeros from `end` on. Lanes of a warp read
// neighbouring channels; the odd stride keeps lanes that read a row each from each other's banks.
template <typename T>
__device__ __forceinline__ void LoadTile(const T* from, int64_t stride, int64_t first, int64_t end,
                                         int head_dim, float* tile) {
  const int lane = static_cast<int>(threadIdx.x);
  for (int row = static_cast<int>(threadIdx.y); row < kTile; row += kWarps) {
    for (int d = lane; d < head_dim; d += kTile) {
      tile[row * (head_dim + 1) + d] =
          first + row < end ? ToFloat(from[(first + row) * stride + d]) : 0.0f;
    }
  }
}

// Products of the warp's rows of `own` with the lane's row of `other`.
__device__ __forceinline__ void RowProducts(const float* own, const float* other, int head_dim,
                                            float (&product)[kOwn]) {
  const int stride = head_dim + 1;
  const float* rows = own + static_cast<int>(threadIdx.y) * kOwn * stride;
  const float* row = other + static_cast<int>(threadIdx.x) * stride;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) product[i] = 0;
  for (int d = 0; d < head_dim; ++d) {
    const float value = row[d];
#pragma unroll
    for (int i = 0; i < kOwn; ++i) product[i] = fmaf(rows[i * stride + d], value, product[i]);
  }
}

// sums[i] += weights of row i, a lane's each, times the rows of `other`. `weights` is the warp's.
template <int kChunks>
__device__ __forceinline__ void AddWeighted(const float (&weight)[kOwn], const float* other,
                                            int head_dim, float* weights,
                                            float (&sums)[kOwn][kChunks]) {
  const int lane = static_cast<int>(threadIdx.x);
  __syncwarp();
#pragma unroll
  for (int i = 0; i < kOwn; ++i) weights[i * kTile + lane] = weight[i];
  __syncwarp();
  for (int j = 0; j < kTile; ++j) {
    const float* row = other + j * (head_dim + 1);
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const int d = lane + c * kTile;
      const float value = d < head_dim ? row[d] : 0.0f;
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        sums[i][c] = fmaf(weights[i * kTile + j], value, sums[i][c]);
      }
    }
  }
}

template <int kChunks, typename T>
__device__ __forceinline__ void StoreRow(const float (&sums)[kChunks], float factor, int head_dim,
                                         T* to) {
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    const int d = static_cast<int>(threadIdx.x) + c * kTile;
    if (d < head_dim) to[d] = FromFloat<T>(sums[c] * factor);
  }
}

// Shared memory of a block: `tiles` tiles, and weights of each warp.
inline size_t TileBytes(int tiles, int head_dim) {
  return sizeof(float) * static_cast<size_t>(tiles * kTile * (head_dim + 1) + kTile * kTile);
}

inline unsigned TilesOf(int64_t rows) { return static_cast<unsigned>((rows + kTile - 1) / kTile); }

// Channels of a lane: calls function.operator()<kChunks>().
template <typename Function>
void ByHeadDim(int64_t head_dim, const Function& function) {
  if (head_dim <= 2 * kTile) return function.template operator()<2>();
  if (head_dim <= 4 * kTile) return function.template operator()<4>();
  return function.template operator()<8>();
}

}  // namespace tercio::kernels::cuda
