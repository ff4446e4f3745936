// Gradients of attention, with probabilities recomputed from the log-sum-exps. Two kernels: blocks
// that own queries, and blocks that own keys, so that no two write the same number.
//
// Launch geometry: attention_tiles.cuh.
// Bound by multiply-adds from shared memory: 7 D for each score that is not masked out. Bytes: a
// block's own rows once, the others once for each tile of rows. Shared memory: (D + 1) * 512 bytes
// and 4 KiB: heads of 256 want 133 KiB, which devices for desktops do not have.
#include "kernels/cuda/attention_tiles.cuh"
#include "kernels/cuda/parts.h"
#include "kernels/cuda/primitives/rows.cuh"
#include "kernels/cuda/scratch.h"

namespace tercio::kernels::cuda {
namespace {

template <typename T>
struct Backward {
  const T* dout;
  const T* out;
  const float* lse;
  const T* q;
  const T* k;
  const T* v;
  T* dq;
  T* dk;
  T* dv;
  float* delta;  // as lse: dout . out
  const T* bias;
  float* bias_parts;  // (sequences, tiles of queries, heads, buckets), or null
};

// delta, a warp for each row and head.
template <typename T>
__global__ void __launch_bounds__(kTileThreads) DeltaKernel(Heads h, Backward<T> b, int64_t rows) {
  if (!IsWanted(h)) return;
  const int lane = static_cast<int>(threadIdx.x);
  const int64_t item = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.y;
  if (item >= rows * h.heads) return;
  float sum = 0;
  for (int d = lane; d < h.head_dim; d += kTile) {
    const int64_t at = item * h.head_dim + d;
    sum = fmaf(ToFloat(b.dout[at]), ToFloat(b.out[at]), sum);
  }
  sum = WarpSum(sum);
  const int64_t row = item / h.heads;
  const int64_t head = item % h.heads;
  if (lane != 0) return;
  b.delta[(row / h.tokens * h.heads + head) * h.tokens + row % h.tokens] = sum;
}

// The tiles of a block: those it owns, and those it walks. first: of q or k; second: of dout or v.
struct Tiles {
  float* own_first;
  float* own_second;
  float* other_first;
  float* other_second;
  float* weights;  // weights of this warp
};
__device__ __forceinline__ Tiles CutTiles(int head_dim) {
  const int size = kTile * (head_dim + 1);
  auto* at = DynamicShared<float>();
  return {at, at + size, at + 2 * size, at + 3 * size,
          at + 4 * size + static_cast<int>(threadIdx.y) * kOwn * kTile};
}

// p * drop, and the gradient of the score, for one element.
template <typename T>
__device__ __forceinline__ float2 Element(const Heads& h, const Backward<T>& b, int64_t sequence,
                                          int64_t head, int64_t query, int64_t key,
                                          float key_product, float product) {
  if (query >= h.tokens || !Sees(h, sequence, query, key)) return make_float2(0, 0);
  const int64_t at = (sequence * h.heads + head) * h.tokens + query;
  const float score = ScoreOf(h, key_product) + BiasOf(h, b.bias, head, query, key);
  const float p = expf(score - b.lse[at]);
  const float drop = Drop(h, head, sequence, query, key);
  return make_float2(p * drop, ThroughScore(h, p * fmaf(product, drop, -b.delta[at]), score));
}

// What a tile of gradients of products adds to the gradient of the thread's bucket: each diagonal
// of the tile has one distance, the first of them that of `distance`.
__device__ __forceinline__ float BiasOfTile(const Heads& h, const float* tile, float* diagonals,
                                            int64_t distance) {
  constexpr int kDiagonals = 2 * kTile - 1;
  const int thread = static_cast<int>(threadIdx.y * kTile + threadIdx.x);
  __syncthreads();
  if (thread < kDiagonals) {
    float sum = 0;
    for (int row = 0; row < kTile; ++row) {
      const int column = row + thread - (kTile - 1);
      if (column >= 0 && column < kTile) sum += tile[row * kTile + column];
    }
    diagonals[thread] = sum;
  }
  __syncthreads();
  float sum = 0;
  for (int i = 0; i < kDiagonals && thread < h.buckets; ++i) {
    // Tiles reach beyond the sequence, where there are no distances, and gradients are zero.
    const int64_t at = distance + i + h.tokens - 1;
    if (at >= 0 && at < 2 * h.tokens - 1 && h.bucket[at] == thread) sum += diagonals[i];
  }
  return sum;
}

// Blocks of an SM at least (attention_tiles.cuh), of those that own queries, and keys.
constexpr int LeastQueryBlocks(int chunks) { return chunks <= 4 ? 3 : 0; }
constexpr int LeastKeyBlocks(int chunks) { return chunks == 2 ? 2 : chunks == 8 ? 1 : 0; }

template <int kChunks, typename T>
__global__ void __launch_bounds__(kTileThreads, LeastQueryBlocks(kChunks))
    QueryGradientKernel(Heads h, Backward<T> b) {
  if (!IsWanted(h)) return;
  const Tiles t = CutTiles(h.head_dim);
  const int lane = static_cast<int>(threadIdx.x);
  const int warp = static_cast<int>(threadIdx.y);
  const int64_t sequence = blockIdx.z;
  const int64_t head = blockIdx.y;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kTile;
  const int64_t last = first + kTile < h.tokens ? first + kTile : h.tokens;
  const int64_t start = At(h, sequence, head);
  const int64_t key_start = KeysAt(h, sequence, head / h.group);
  const int64_t row_size = h.heads * h.head_dim;
  LoadTile(b.q + start, h.stride, first, h.tokens, h.head_dim, t.own_first);
  LoadTile(b.dout + sequence * h.tokens * row_size + head * h.head_dim, row_size, first, h.tokens,
           h.head_dim, t.own_second);
  __shared__ float diagonals[2 * kTile - 1];
  float sums[kOwn][kChunks] = {};
  float bias_sum = 0;  // of the thread's bucket
  const int64_t end = KeysOf(h, sequence, last - 1);
  for (int64_t key_tile = FirstTileOf(h, sequence, first); key_tile < end; key_tile += kTile) {
    __syncthreads();
    LoadTile(b.k + key_start, h.key_stride, key_tile, end, h.head_dim, t.other_first);
    LoadTile(b.v + key_start, h.key_stride, key_tile, end, h.head_dim, t.other_second);
    __syncthreads();
    float score[kOwn], product[kOwn];
    RowProducts(t.own_first, t.other_first, h.head_dim, score);
    RowProducts(t.own_second, t.other_second, h.head_dim, product);
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      score[i] = Element(h, b, sequence, head, first + warp * kOwn + i, key_tile + lane, score[i],
                         product[i])
                     .y;
    }
    AddWeighted(score, t.other_first, h.head_dim, t.weights, sums);
    if (b.bias_parts != nullptr) {
      const float* tile = t.weights - warp * kOwn * kTile;
      bias_sum += BiasOfTile(h, tile, diagonals, key_tile - first - (kTile - 1));
    }
  }
  if (b.bias_parts != nullptr && warp * kTile + lane < h.buckets) {
    const int64_t part = (sequence * gridDim.x + blockIdx.x) * h.heads + head;
    b.bias_parts[part * h.buckets + warp * kTile + lane] = bias_sum / h.scale;
  }
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int64_t query = first + warp * kOwn + i;
    if (query < last) StoreRow(sums[i], 1.0f, h.head_dim, b.dq + start + query * h.stride);
  }
}

template <int kChunks, typename T>
__global__ void __launch_bounds__(kTileThreads, LeastKeyBlocks(kChunks))
    KeyGradientKernel(Heads h, Backward<T> b) {
  if (!IsWanted(h)) return;
  const Tiles t = CutTiles(h.head_dim);
  const int lane = static_cast<int>(threadIdx.x);
  const int warp = static_cast<int>(threadIdx.y);
  const int64_t sequence = blockIdx.z;
  const int64_t key_head = blockIdx.y;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kTile;
  const int64_t key_start = KeysAt(h, sequence, key_head);
  const int64_t row_size = h.heads * h.head_dim;
  LoadTile(b.k + key_start, h.key_stride, first, h.key_tokens, h.head_dim, t.own_first);
  LoadTile(b.v + key_start, h.key_stride, first, h.key_tokens, h.head_dim, t.own_second);
  float dk[kOwn][kChunks] = {};
  float dv[kOwn][kChunks] = {};
  const int64_t last = first + kTile - 1 + h.window;  // a window behind the last key
  const int64_t end = h.window > 0 && last < h.tokens ? last : h.tokens;
  const bool padding = !h.causal && first >= KeysOf(h, sequence, 0);  // no query attends to it
  for (int64_t head = key_head * h.group; head < (key_head + 1) * h.group && !padding; ++head) {
    const T* queries = b.q + At(h, sequence, head);
    const T* gradients = b.dout + sequence * h.tokens * row_size + head * h.head_dim;
    // Queries before the first key do not see it, nor do those whose windows begin behind the last.
    for (int64_t tile = h.causal ? first : 0; tile < end; tile += kTile) {
      // Nor do those of later documents than the last key's, which all follow.
      if (DocumentOf(h, sequence, tile) > first + kTile - 1) break;
      __syncthreads();
      LoadTile(queries, h.stride, tile, h.tokens, h.head_dim, t.other_first);
      LoadTile(gradients, row_size, tile, h.tokens, h.head_dim, t.other_second);
      __syncthreads();
      float score[kOwn], product[kOwn];
      RowProducts(t.own_first, t.other_first, h.head_dim, score);
      RowProducts(t.own_second, t.other_second, h.head_dim, product);
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        const float2 element = Element(h, b, sequence, head, tile + lane, first + warp * kOwn + i,
                                       score[i], product[i]);
        score[i] = element.y;
        product[i] = element.x;
      }
      AddWeighted(score, t.other_first, h.head_dim, t.weights, dk);
      AddWeighted(product, t.other_second, h.head_dim, t.weights, dv);
    }
  }
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int64_t key = first + warp * kOwn + i;
    if (key >= h.key_tokens) continue;
    StoreRow(dk[i], 1.0f, h.head_dim, b.dk + key_start + key * h.key_stride);
    StoreRow(dv[i], 1.0f, h.head_dim, b.dv + key_start + key * h.key_stride);
  }
}

}  // namespace

void AttentionBackwardCuda(const AttentionBackwardArgs& a, const CudaContext& context,
                           const uint32_t* wanted) {
  if (a.sequences == 0 || a.tokens == 0) return;
  const Heads heads = MakeHeads(a, wanted);
  const int64_t rows = a.sequences * a.tokens;
  const int64_t blocks = AttentionBiasBlocks(a.sequences, a.tokens);
  const int64_t bias_bytes =
      a.dbias == nullptr ? 0 : AttentionBiasBytes(blocks, a.heads, a.bias.buckets);
  auto* delta = context.Scratch<float>(AttentionBackwardBytes(rows, a.heads) + bias_bytes);
  float* bias_parts = a.dbias == nullptr ? nullptr : delta + rows * a.heads;
  LaunchShape shape{
      dim3(TilesOf(a.tokens), static_cast<unsigned>(a.heads), static_cast<unsigned>(a.sequences)),
      dim3(kTile, kWarps), TileBytes(4, heads.head_dim)};
  TERCIO_CHECK_LE(shape.shared_bytes, context.shared_bytes);
  const LaunchShape deltas{dim3(static_cast<unsigned>((rows * a.heads + kWarps - 1) / kWarps)),
                           dim3(kTile, kWarps)};
  ByStorage(a.dq.stored(), [&]<typename T>() {
    const Backward<T> backward{
        As<T>(a.dout), As<T>(a.out), a.lse,       As<T>(a.q), As<T>(a.k),           As<T>(a.v),
        As<T>(a.dq),   As<T>(a.dk),  As<T>(a.dv), delta,      As<T>(a.bias.weight), bias_parts};
    Launch(DeltaKernel<T>, deltas, context.stream, heads, backward, rows);
    ByHeadDim(a.head_dim, [&]<int kChunks>() {
      Launch(QueryGradientKernel<kChunks, T>, shape, context.stream, heads, backward);
      shape.blocks.x = TilesOf(KeyTokensOf(a));
      shape.blocks.y = static_cast<unsigned>(a.heads / a.group);
      Launch(KeyGradientKernel<kChunks, T>, shape, context.stream, heads, backward);
    });
  });
  if (a.dbias == nullptr) return;
  AddParts(bias_parts, blocks, a.heads * a.bias.buckets, SumTarget::kAdd, {{a.dbias}},
           context.stream);
}

}  // namespace tercio::kernels::cuda
