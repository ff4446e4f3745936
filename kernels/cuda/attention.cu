// Attention without ever storing the probabilities (Dao et al., "FlashAttention"), in plain fp32
// multiply-adds from shared memory: the reference for libraries' kernels, and the fallback where
// they do not fit.
//
// Launch geometry: attention_tiles.cuh; a block has 32 queries of a head.
// Bound by multiply-adds from shared memory: 2 D for each score that is not masked out. Bytes:
// queries once, keys and values once for each tile of queries. Shared memory: (D + 1) * 384 bytes
// and 4 KiB.
#include "kernels/cuda/attention_tiles.cuh"
#include "kernels/cuda/parts.h"

namespace tercio::kernels::cuda {
namespace {

template <typename T>
struct Forward {
  const T* q;
  const T* k;
  const T* v;
  const T* bias;
  T* out;
  float* lse;
  int64_t first_query;
};

// One key tile of the online softmax: the state of the warp's rows so far.
template <int kChunks>
struct Softmax {
  float max[kOwn];
  float sum[kOwn];
  float out[kOwn][kChunks];
};

// Blocks of an SM at least (attention_tiles.cuh).
constexpr int LeastBlocks(int chunks) { return chunks == 2 ? 3 : chunks == 4 ? 2 : 0; }

template <int kChunks, typename T>
__global__ void __launch_bounds__(kTileThreads, LeastBlocks(kChunks))
    ForwardKernel(Heads h, Forward<T> f) {
  if (!IsWanted(h)) return;
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
  const int64_t at = KeysAt(h, sequence, head / h.group);
  LoadTile(f.q + At(h, sequence, head), h.stride, first, h.tokens, h.head_dim, queries);
  Softmax<kChunks> s{};
#pragma unroll
  for (int i = 0; i < kOwn; ++i) s.max[i] = -INFINITY;
  const int64_t end = KeysOf(h, sequence, last - 1);
  for (int64_t key_tile = FirstTileOf(h, sequence, first); key_tile < end; key_tile += kTile) {
    __syncthreads();
    LoadTile(f.k + at, h.key_stride, key_tile, end, h.head_dim, keys);
    LoadTile(f.v + at, h.key_stride, key_tile, end, h.head_dim, values);
    __syncthreads();
    float weight[kOwn];
    RowProducts(queries, keys, h.head_dim, weight);
    const int64_t key = key_tile + lane;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int64_t query = first + warp * kOwn + i;
      const bool seen = Sees(h, sequence, query, key) && key < end;
      const float score =
          seen ? ScoreOf(h, weight[i]) + BiasOf(h, f.bias, head, query, key) : -INFINITY;
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

}  // namespace

void AttentionCuda(const AttentionArgs& a, const CudaContext& context, const uint32_t* wanted) {
  if (a.sequences == 0 || a.first_query >= a.tokens) return;
  const Heads heads = MakeHeads(a, wanted);
  const LaunchShape shape{dim3(TilesOf(a.tokens) - static_cast<unsigned>(a.first_query / kTile),
                               static_cast<unsigned>(a.heads), static_cast<unsigned>(a.sequences)),
                          dim3(kTile, kWarps), TileBytes(3, heads.head_dim)};
  TERCIO_CHECK_LE(shape.shared_bytes, context.shared_bytes);
  ByStorage(a.out.stored(), [&]<typename T>() {
    const Forward<T> forward{As<T>(a.q),   As<T>(a.k), As<T>(a.v),   As<T>(a.bias.weight),
                             As<T>(a.out), a.lse,      a.first_query};
    ByHeadDim(a.head_dim, [&]<int kChunks>() {
      Launch(ForwardKernel<kChunks, T>, shape, context.stream, heads, forward);
    });
  });
}

}  // namespace tercio::kernels::cuda
