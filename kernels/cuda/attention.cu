// Attention forward and backward without ever storing the probabilities (Dao et al.,
// "FlashAttention"), in plain fp32 multiply-adds from shared memory: the reference for libraries'
// kernels, and what runs where they do not fit.
//
// Launch geometry: a block of 8 warps has a tile of 32 rows of one head of one sequence: queries,
// or, for the gradients of keys and values, keys of a key head. A warp has four rows of the tile.
// The block walks tiles of 32 of the others (keys, or the queries of all query heads of the group,
// ascending); a lane has one of them while scores are made, and every 32nd channel while they are
// multiplied with values. Tiles begin at multiples of 32, so a row's bits depend on neither the
// rows beside it nor first_query, and every sum has one order: nothing is atomic.
//
// Bound by multiply-adds from shared memory: forward 2 D, backward 7 D for each score that is not
// masked out. Bytes: rows once, the others once for each tile of rows. Shared memory: (D + 1) * 384
// bytes forward, (D + 1) * 512 backward, and 4 KiB: heads of 256 want 133 KiB, which devices for
// desktops do not have.
#include <cmath>

#include "kernels/cuda/parts.h"
#include "kernels/cuda/primitives/groups.cuh"
#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/primitives/reduce.cuh"
#include "kernels/cuda/scratch.h"
#include "kernels/random.h"

namespace tercio::kernels::cuda {
namespace {

constexpr int kTile = 32;  // rows, and others: a lane each
constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kTile;
constexpr int kOwn = kTile / kWarps;  // rows of a warp
constexpr int kMaxHeadDim = 256;

// What both directions need to know.
struct Heads {
  int64_t stride;
  int64_t tokens, heads, group;
  int head_dim;
  float scale;
  bool causal;
  const int32_t* lengths;
  // Dropout.
  bool dropping;
  PhiloxKey key;
  uint32_t threshold;
  float multiplier;
  uint32_t tag;
  uint32_t first_sequence;
};

template <typename Args>
Heads MakeHeads(const Args& a) {
  TERCIO_CHECK_LE(a.head_dim, kMaxHeadDim);
  TERCIO_CHECK_EQ(a.heads % a.group, 0);
  Heads heads{a.stride,
              a.tokens,
              a.heads,
              a.group,
              static_cast<int>(a.head_dim),
              1.0f / std::sqrt(static_cast<float>(a.head_dim)),
              a.causal,
              a.lengths,
              a.dropout.probability > 0,
              {},
              0,
              1,
              0,
              static_cast<uint32_t>(a.dropout.first_sequence)};
  if (heads.dropping) {
    heads.key = MakeKey(a.dropout.seed, a.dropout.step);
    heads.threshold = DropThreshold(a.dropout.probability);
    heads.multiplier = 1.0f / (1.0f - a.dropout.probability);
    heads.tag = kSiteAttention | a.dropout.layer << 4 | static_cast<uint32_t>(a.first_head) << 16;
  }
  return heads;
}

// Keys that `query` attends to: those up to itself, or all of its sequence.
__device__ __forceinline__ int64_t KeysOf(const Heads& h, int64_t sequence, int64_t query) {
  if (h.causal) return query + 1;
  return h.lengths == nullptr ? h.tokens : h.lengths[sequence];
}

// 0 or the multiplier for one element of the attention matrix.
__device__ __forceinline__ float Drop(const Heads& h, int64_t head, int64_t sequence, int64_t query,
                                      int64_t key) {
  if (!h.dropping) return 1.0f;
  const PhiloxBlock bits =
      Philox(h.key, {static_cast<uint32_t>(key / 4), static_cast<uint32_t>(query),
                     h.first_sequence + static_cast<uint32_t>(sequence),
                     h.tag + (static_cast<uint32_t>(head) << 16)});
  return bits[static_cast<size_t>(key % 4)] >= h.threshold ? h.multiplier : 0.0f;
}

// The first element of a head in its sequence.
__device__ __forceinline__ int64_t At(const Heads& h, int64_t sequence, int64_t head) {
  return sequence * h.tokens * h.stride + head * h.head_dim;
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
size_t SharedBytes(int tiles, int head_dim) {
  return sizeof(float) * static_cast<size_t>(tiles * kTile * (head_dim + 1) + kTile * kTile);
}

template <typename T>
struct Forward {
  const T* q;
  const T* k;
  const T* v;
  T* out;
  float* lse;
  int64_t first_query;
};

// One key tile of the online softmax: what the warp's rows have so far.
template <int kChunks>
struct Softmax {
  float max[kOwn];
  float sum[kOwn];
  float out[kOwn][kChunks];
};

template <int kChunks, typename T>
__global__ void __launch_bounds__(kThreads) ForwardKernel(Heads h, Forward<T> f) {
  const int tile_size = kTile * (h.head_dim + 1);
  auto* queries = DynamicShared<float>();
  float* keys = queries + tile_size;
  float* values = keys + tile_size;
  const int lane = static_cast<int>(threadIdx.x);
  const int warp = static_cast<int>(threadIdx.y);
  float* weights = values + tile_size + warp * kOwn * kTile;
  const int64_t sequence = blockIdx.z;
  const int64_t head = blockIdx.y;
  const int64_t first = (f.first_query / kTile + blockIdx.x) * kTile;
  const int64_t last = first + kTile < h.tokens ? first + kTile : h.tokens;
  const int64_t at = At(h, sequence, head / h.group);
  LoadTile(f.q + At(h, sequence, head), h.stride, first, h.tokens, h.head_dim, queries);
  Softmax<kChunks> s{};
#pragma unroll
  for (int i = 0; i < kOwn; ++i) s.max[i] = -INFINITY;
  const int64_t end = KeysOf(h, sequence, last - 1);
  for (int64_t key_tile = 0; key_tile < end; key_tile += kTile) {
    __syncthreads();
    LoadTile(f.k + at, h.stride, key_tile, end, h.head_dim, keys);
    LoadTile(f.v + at, h.stride, key_tile, end, h.head_dim, values);
    __syncthreads();
    float weight[kOwn];
    RowProducts(queries, keys, h.head_dim, weight);
    const int64_t key = key_tile + lane;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int64_t query = first + warp * kOwn + i;
      const bool seen = key < KeysOf(h, sequence, query) && key < end;
      const float score = seen ? weight[i] * h.scale : -INFINITY;
      const float max = fmaxf(s.max[i], WarpMax(score));
      const float p = seen ? expf(score - max) : 0.0f;
      const float shrink = max == s.max[i] ? 1.0f : expf(s.max[i] - max);
      s.max[i] = max;
      s.sum[i] = fmaf(s.sum[i], shrink, WarpSum(p));
      weight[i] = seen ? p * Drop(h, head, sequence, query, key) : 0.0f;
#pragma unroll
      for (int c = 0; c < kChunks; ++c) s.out[i][c] *= shrink;
    }
    AddWeighted(weight, values, h.head_dim, weights, s.out);
  }
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int64_t query = first + warp * kOwn + i;
    if (query >= last || query < f.first_query) continue;
    T* out = f.out + ((sequence * h.tokens + query) * h.heads + head) * h.head_dim;
    StoreRow(s.out[i], 1.0f / s.sum[i], h.head_dim, out);
    if (lane == 0)
      f.lse[(sequence * h.heads + head) * h.tokens + query] = s.max[i] + logf(s.sum[i]);
  }
}

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
};

// delta, a warp for each row and head.
template <typename T>
__global__ void __launch_bounds__(kThreads) DeltaKernel(Heads h, Backward<T> b, int64_t rows) {
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
  float* weights;  // of this warp
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
                                          int64_t head, int64_t query, int64_t key, float score,
                                          float product) {
  if (query >= h.tokens || key >= KeysOf(h, sequence, query)) return make_float2(0, 0);
  const int64_t at = (sequence * h.heads + head) * h.tokens + query;
  const float p = expf(score * h.scale - b.lse[at]);
  const float drop = Drop(h, head, sequence, query, key);
  return make_float2(p * drop, p * fmaf(product, drop, -b.delta[at]) * h.scale);
}

template <int kChunks, typename T>
__global__ void __launch_bounds__(kThreads) QueryGradientKernel(Heads h, Backward<T> b) {
  const Tiles t = CutTiles(h.head_dim);
  const int lane = static_cast<int>(threadIdx.x);
  const int warp = static_cast<int>(threadIdx.y);
  const int64_t sequence = blockIdx.z;
  const int64_t head = blockIdx.y;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kTile;
  const int64_t last = first + kTile < h.tokens ? first + kTile : h.tokens;
  const int64_t start = At(h, sequence, head);
  const int64_t key_start = At(h, sequence, head / h.group);
  const int64_t row_size = h.heads * h.head_dim;
  LoadTile(b.q + start, h.stride, first, h.tokens, h.head_dim, t.own_first);
  LoadTile(b.dout + sequence * h.tokens * row_size + head * h.head_dim, row_size, first, h.tokens,
           h.head_dim, t.own_second);
  float sums[kOwn][kChunks] = {};
  const int64_t end = KeysOf(h, sequence, last - 1);
  for (int64_t key_tile = 0; key_tile < end; key_tile += kTile) {
    __syncthreads();
    LoadTile(b.k + key_start, h.stride, key_tile, end, h.head_dim, t.other_first);
    LoadTile(b.v + key_start, h.stride, key_tile, end, h.head_dim, t.other_second);
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
  }
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int64_t query = first + warp * kOwn + i;
    if (query < last) StoreRow(sums[i], 1.0f, h.head_dim, b.dq + start + query * h.stride);
  }
}

template <int kChunks, typename T>
__global__ void __launch_bounds__(kThreads) KeyGradientKernel(Heads h, Backward<T> b) {
  const Tiles t = CutTiles(h.head_dim);
  const int lane = static_cast<int>(threadIdx.x);
  const int warp = static_cast<int>(threadIdx.y);
  const int64_t sequence = blockIdx.z;
  const int64_t key_head = blockIdx.y;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kTile;
  const int64_t key_start = At(h, sequence, key_head);
  const int64_t row_size = h.heads * h.head_dim;
  LoadTile(b.k + key_start, h.stride, first, h.tokens, h.head_dim, t.own_first);
  LoadTile(b.v + key_start, h.stride, first, h.tokens, h.head_dim, t.own_second);
  float dk[kOwn][kChunks] = {};
  float dv[kOwn][kChunks] = {};
  const bool padding = !h.causal && first >= KeysOf(h, sequence, 0);  // nobody attends to it
  for (int64_t head = key_head * h.group; head < (key_head + 1) * h.group && !padding; ++head) {
    const T* queries = b.q + At(h, sequence, head);
    const T* gradients = b.dout + sequence * h.tokens * row_size + head * h.head_dim;
    // Queries before the first key do not see it.
    for (int64_t tile = h.causal ? first : 0; tile < h.tokens; tile += kTile) {
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
    if (key >= h.tokens) continue;
    StoreRow(dk[i], 1.0f, h.head_dim, b.dk + key_start + key * h.stride);
    StoreRow(dv[i], 1.0f, h.head_dim, b.dv + key_start + key * h.stride);
  }
}

unsigned TilesOf(int64_t rows) { return static_cast<unsigned>((rows + kTile - 1) / kTile); }

// Channels of a lane: calls function.operator()<kChunks>().
template <typename Function>
void ByHeadDim(int64_t head_dim, const Function& function) {
  if (head_dim <= 2 * kTile) return function.template operator()<2>();
  if (head_dim <= 4 * kTile) return function.template operator()<4>();
  return function.template operator()<8>();
}

}  // namespace

void AttentionCuda(const AttentionArgs& a, const CudaContext& context) {
  if (a.sequences == 0 || a.first_query >= a.tokens) return;
  const Heads heads = MakeHeads(a);
  const LaunchShape shape{dim3(TilesOf(a.tokens) - static_cast<unsigned>(a.first_query / kTile),
                               static_cast<unsigned>(a.heads), static_cast<unsigned>(a.sequences)),
                          dim3(kTile, kWarps), SharedBytes(3, heads.head_dim)};
  TERCIO_CHECK_LE(shape.shared_bytes, context.shared_bytes);
  ByStorage(a.out.stored(), [&]<typename T>() {
    const Forward<T> forward{As<T>(a.q),   As<T>(a.k), As<T>(a.v),
                             As<T>(a.out), a.lse,      a.first_query};
    ByHeadDim(a.head_dim, [&]<int kChunks>() {
      Launch(ForwardKernel<kChunks, T>, shape, context.stream, heads, forward);
    });
  });
}

void AttentionBackwardCuda(const AttentionBackwardArgs& a, const CudaContext& context) {
  if (a.sequences == 0 || a.tokens == 0) return;
  const Heads heads = MakeHeads(a);
  const int64_t rows = a.sequences * a.tokens;
  auto* delta = context.Scratch<float>(AttentionBackwardBytes(rows, a.heads));
  LaunchShape shape{
      dim3(TilesOf(a.tokens), static_cast<unsigned>(a.heads), static_cast<unsigned>(a.sequences)),
      dim3(kTile, kWarps), SharedBytes(4, heads.head_dim)};
  TERCIO_CHECK_LE(shape.shared_bytes, context.shared_bytes);
  const LaunchShape deltas{dim3(static_cast<unsigned>((rows * a.heads + kWarps - 1) / kWarps)),
                           dim3(kTile, kWarps)};
  ByStorage(a.dq.stored(), [&]<typename T>() {
    const Backward<T> backward{As<T>(a.dout), As<T>(a.out), a.lse,       As<T>(a.q),  As<T>(a.k),
                               As<T>(a.v),    As<T>(a.dq),  As<T>(a.dk), As<T>(a.dv), delta};
    Launch(DeltaKernel<T>, deltas, context.stream, heads, backward, rows);
    ByHeadDim(a.head_dim, [&]<int kChunks>() {
      Launch(QueryGradientKernel<kChunks, T>, shape, context.stream, heads, backward);
      shape.blocks.y = static_cast<unsigned>(a.heads / a.group);
      Launch(KeyGradientKernel<kChunks, T>, shape, context.stream, heads, backward);
    });
  });
}

}  // namespace tercio::kernels::cuda
