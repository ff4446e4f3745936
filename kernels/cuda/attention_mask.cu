// What a library's attention lacks beside ours: dropout, as a mask in memory that it multiplies
// with, to the bit that of our own kernels; and zeros in the gradients of padding.
//
// Launch geometry: a warp has 256 keys of a query, a lane eight of them; a block has eight queries.
// Zeros: a warp has a row, a block eight.
// Bytes: 2 for each pair of a query and a key; of zeros 4 for each channel of padding. The mask is
// bound by the random numbers, and where the query does not see the keys, which have none, by
// memory.
#include "kernels/cuda/attention_tiles.cuh"
#include "kernels/cuda/parts.h"

namespace tercio::kernels::cuda {
namespace {

constexpr int kQueries = 8;
constexpr int kKeys = 8;

template <typename T>
struct Mask {
  T* mask;
  int64_t tokens, heads, stride;
  bool causal;
  const int32_t* lengths;
  ScoreDropout dropout;
  int64_t key_tiles;
};

template <typename T>
__global__ void __launch_bounds__(kQueries* kWarpThreads) MaskKernel(Mask<T> m) {
  const int64_t sequence = blockIdx.z;
  const int64_t head = blockIdx.y;
  const int64_t query = blockIdx.x / m.key_tiles * kQueries + threadIdx.y;
  const int64_t key = (blockIdx.x % m.key_tiles * kWarpThreads + threadIdx.x) * kKeys;
  if (query >= m.tokens || key >= m.stride) return;
  const int64_t seen = m.lengths == nullptr ? m.tokens : m.lengths[sequence];
  const int64_t end = m.causal ? query + 1 : seen;
  float kept[kKeys] = {};
#pragma unroll
  for (int quad = 0; quad < kKeys; quad += 4) {
    if (key + quad >= end) break;
    const PhiloxBlock bits = DropBits(m.dropout, head, sequence, query, key + quad);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      kept[quad + j] = bits[static_cast<size_t>(j)] >= m.dropout.threshold ? 1.0f : 0.0f;
    }
  }
  T* const to = m.mask + ((sequence * m.heads + head) * m.tokens + query) * m.stride + key;
  StoreGroup<true>(kept, kKeys, to);
}

template <typename T>
__global__ void __launch_bounds__(kQueries* kWarpThreads)
    ZeroPaddingKernel(T* dk, T* dv, const int32_t* lengths, int64_t tokens, int64_t width,
                      int64_t stride) {
  const int64_t sequence = blockIdx.y;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kQueries + threadIdx.y;
  if (row >= tokens || row < lengths[sequence]) return;
  const int64_t at = (sequence * tokens + row) * stride;
  for (int64_t c = threadIdx.x; c < width; c += kWarpThreads) {
    dk[at + c] = FromFloat<T>(0);
    dv[at + c] = FromFloat<T>(0);
  }
}

}  // namespace

void ZeroPaddingCuda(const AttentionBackwardArgs& a, const CudaContext& context) {
  if (a.sequences == 0 || a.tokens == 0) return;
  const LaunchShape shape{dim3(static_cast<unsigned>((a.tokens + kQueries - 1) / kQueries),
                               static_cast<unsigned>(a.sequences)),
                          dim3(kWarpThreads, kQueries)};
  ByStorage(a.dk.stored(), [&]<typename T>() {
    Launch(ZeroPaddingKernel<T>, shape, context.stream, As<T>(a.dk), As<T>(a.dv), a.lengths,
           a.tokens, a.heads / a.group * a.head_dim, a.stride);
  });
}

void AttentionMaskCuda(const AttentionMaskArgs& a, const CudaContext& context) {
  if (a.sequences == 0 || a.tokens == 0) return;
  TERCIO_CHECK_EQ(a.stride % kKeys, 0);
  const int64_t tile = kWarpThreads * kKeys;
  const int64_t key_tiles = (a.stride + tile - 1) / tile;
  const int64_t query_tiles = (a.tokens + kQueries - 1) / kQueries;
  const LaunchShape shape{dim3(static_cast<unsigned>(key_tiles * query_tiles),
                               static_cast<unsigned>(a.heads), static_cast<unsigned>(a.sequences)),
                          dim3(kWarpThreads, kQueries)};
  ByStorage(a.mask.stored(), [&]<typename T>() {
    const Mask<T> mask{As<T>(a.mask),
                       a.tokens,
                       a.heads,
                       a.stride,
                       a.causal,
                       a.lengths,
                       MakeScoreDropout(a.dropout, a.first_head),
                       key_tiles};
    Launch(MaskKernel<T>, shape, context.stream, mask);
  });
}

}  // namespace tercio::kernels::cuda
