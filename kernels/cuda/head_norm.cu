// RMSNorm of each head of queries and keys, and its gradients.
//
// Launch geometry: blocks of 32 x 8 threads; a warp has a head of a row at a time, a lane one or
// two groups of it, in registers. Backward: a block has the heads of its rows, a warp every eighth
// of them, ascending; a lane adds dweight of its channels, the sums of the warps are added in
// ascending order, and those of all blocks afterwards. Bytes for each element, B = 2 or 4: forward
// 2 B, backward 3 B. Bound by memory.
#include <algorithm>
#include <initializer_list>

#include "kernels/cuda/parts.h"
#include "kernels/cuda/primitives/groups.cuh"
#include "kernels/cuda/primitives/reduce.cuh"
#include "kernels/cuda/primitives/rows.cuh"

namespace tercio::kernels::cuda {
namespace {

constexpr int kMaxHeadDim = 256;
template <typename T>
inline constexpr int kGroupsOfLane = kMaxHeadDim / (kLanes * kGroup<T>);

// Where the heads lie.
struct HeadRows {
  int64_t rows, heads, head_dim, stride;

  __device__ __forceinline__ int64_t At(int64_t item) const {
    return item / heads * stride + item % heads * head_dim;
  }
};

// The first channel of a lane's group, and how many it has there; 0 or less: none.
template <typename T>
__device__ __forceinline__ int64_t ColumnOf(int group) {
  return (static_cast<int64_t>(threadIdx.x) + group * kLanes) * kGroup<T>;
}
template <typename T>
__device__ __forceinline__ int64_t CountOf(const HeadRows& h, int group) {
  const int64_t rest = h.head_dim - ColumnOf<T>(group);
  return rest < kGroup<T> ? rest : kGroup<T>;
}

// A lane's groups of a head, or of the weight.
template <typename T>
using OwnGroups = float[kGroupsOfLane<T>][kGroup<T>];

template <bool kAligned, typename T>
__device__ __forceinline__ void LoadOwn(const HeadRows& h, const T* head, OwnGroups<T>& own) {
#pragma unroll
  for (int g = 0; g < kGroupsOfLane<T>; ++g) {
    LoadGroup<kAligned>(head + ColumnOf<T>(g), CountOf<T>(h, g), own[g]);
  }
}

template <typename T>
struct HeadNorm {
  HeadRows h;
  const T* x;
  const T* weight;
  T* y;
  float* rstd;
  float eps;
};

template <bool kAligned, typename T>
__global__ void __launch_bounds__(kRowsThreads)
    HeadNormKernel(const __grid_constant__ HeadNorm<T> n) {
  OwnGroups<T> weight;
  LoadOwn<kAligned>(n.h, n.weight, weight);
  const int64_t items = n.h.rows * n.h.heads;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kRowThreads;
  for (int64_t item = static_cast<int64_t>(blockIdx.x) * kRowThreads + threadIdx.y; item < items;
       item += step) {
    OwnGroups<T> x;
    LoadOwn<kAligned>(n.h, n.x + n.h.At(item), x);
    float squares = 0;
#pragma unroll
    for (int g = 0; g < kGroupsOfLane<T>; ++g) {
#pragma unroll
      for (int j = 0; j < kGroup<T>; ++j) squares = fmaf(x[g][j], x[g][j], squares);
    }
    const float rstd = 1.0f / sqrtf(WarpSum(squares) / static_cast<float>(n.h.head_dim) + n.eps);
    if (threadIdx.x == 0) n.rstd[item] = rstd;
#pragma unroll
    for (int g = 0; g < kGroupsOfLane<T>; ++g) {
#pragma unroll
      for (int j = 0; j < kGroup<T>; ++j) x[g][j] = x[g][j] * rstd * weight[g][j];
      StoreGroup<kAligned>(x[g], CountOf<T>(n.h, g), n.y + n.h.At(item) + ColumnOf<T>(g));
    }
  }
}

template <typename T>
struct HeadNormBackward {
  HeadRows h;
  const T* dy;
  const T* x;
  const T* weight;
  const float* rstd;
  T* dx;
  float* parts;  // (blocks, head_dim)
  int64_t rows_per_block;
};

// dx of one head, and what it adds to dweight.
template <bool kAligned, typename T>
__device__ __forceinline__ void BackwardOfHead(const HeadNormBackward<T>& b, int64_t item,
                                               const OwnGroups<T>& weight, OwnGroups<T>& dweight) {
  OwnGroups<T> dy, n;
  LoadOwn<kAligned>(b.h, b.dy + b.h.At(item), dy);
  LoadOwn<kAligned>(b.h, b.x + b.h.At(item), n);
  const float rstd = b.rstd[item];
  float sum = 0;
#pragma unroll
  for (int g = 0; g < kGroupsOfLane<T>; ++g) {
#pragma unroll
    for (int j = 0; j < kGroup<T>; ++j) {
      n[g][j] *= rstd;
      dweight[g][j] = fmaf(dy[g][j], n[g][j], dweight[g][j]);
      dy[g][j] *= weight[g][j];
      sum = fmaf(dy[g][j], n[g][j], sum);
    }
  }
  const float mean = WarpSum(sum) / static_cast<float>(b.h.head_dim);
#pragma unroll
  for (int g = 0; g < kGroupsOfLane<T>; ++g) {
#pragma unroll
    for (int j = 0; j < kGroup<T>; ++j) dy[g][j] = rstd * fmaf(-n[g][j], mean, dy[g][j]);
    StoreGroup<kAligned>(dy[g], CountOf<T>(b.h, g), b.dx + b.h.At(item) + ColumnOf<T>(g));
  }
}

template <bool kAligned, typename T>
__global__ void __launch_bounds__(kRowsThreads)
    HeadNormBackwardKernel(const __grid_constant__ HeadNormBackward<T> b) {
  auto* shared = DynamicShared<float>();  // (kRowThreads, head_dim)
  OwnGroups<T> weight;
  OwnGroups<T> dweight = {};
  LoadOwn<kAligned>(b.h, b.weight, weight);
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * b.rows_per_block;
  const int64_t end = begin + b.rows_per_block < b.h.rows ? begin + b.rows_per_block : b.h.rows;
  for (int64_t item = begin * b.h.heads + threadIdx.y; item < end * b.h.heads;
       item += kRowThreads) {
    BackwardOfHead<kAligned>(b, item, weight, dweight);
  }
#pragma unroll
  for (int g = 0; g < kGroupsOfLane<T>; ++g) {
    StoreGroup<false>(dweight[g], CountOf<T>(b.h, g),
                      shared + threadIdx.y * b.h.head_dim + ColumnOf<T>(g));
  }
  __syncthreads();
  for (int64_t c = threadIdx.y * kLanes + threadIdx.x; c < b.h.head_dim; c += kRowsThreads) {
    float total = 0;
    for (int warp = 0; warp < kRowThreads; ++warp) total += shared[warp * b.h.head_dim + c];
    b.parts[blockIdx.x * b.h.head_dim + c] = total;
  }
}

template <typename Args>
HeadRows RowsOf(const Args& a) {
  TERCIO_CHECK_LE(a.head_dim, kMaxHeadDim);
  return {a.rows, a.heads, a.head_dim, a.stride};
}

// Whether heads and the weight begin at multiples of 16 bytes.
template <typename T>
bool HeadsAligned(const HeadRows& h, std::initializer_list<const void*> starts) {
  return Aligned(starts, h.stride, sizeof(T)) && Aligned({}, h.head_dim, sizeof(T));
}

}  // namespace

void HeadNormCuda(const HeadNormArgs& a, const CudaContext& context) {
  if (a.rows == 0) return;
  const int64_t blocks = (a.rows * a.heads + kRowThreads - 1) / kRowThreads;
  const LaunchShape shape{dim3(static_cast<unsigned>(std::min<int64_t>(blocks, int64_t{1} << 20))),
                          dim3(kLanes, kRowThreads)};
  ByStorage(a.y.stored(), [&]<typename T>() {
    const HeadNorm<T> n{RowsOf(a), As<T>(a.x), As<T>(a.weight), As<T>(a.y), a.rstd, a.eps};
    if (HeadsAligned<T>(n.h, {n.x, n.weight, n.y})) {
      Launch(HeadNormKernel<true, T>, shape, context.stream, n);
    } else {
      Launch(HeadNormKernel<false, T>, shape, context.stream, n);
    }
  });
}

void HeadNormBackwardCuda(const HeadNormBackwardArgs& a, const CudaContext& context) {
  if (a.rows == 0) return;
  const RowBlocks cut = CutRows(a.rows, kLeastRowsOfNorm);
  auto* parts = context.Scratch<float>(HeadNormBackwardBytes(a.rows, a.head_dim));
  const LaunchShape shape{dim3(static_cast<unsigned>(cut.blocks)), dim3(kLanes, kRowThreads),
                          static_cast<size_t>(kRowThreads * a.head_dim) * sizeof(float)};
  ByStorage(a.dx.stored(), [&]<typename T>() {
    const HeadNormBackward<T> b{RowsOf(a), As<T>(a.dy), As<T>(a.x), As<T>(a.weight),
                                a.rstd,    As<T>(a.dx), parts,      cut.rows_per_block};
    if (HeadsAligned<T>(b.h, {b.dy, b.x, b.weight, b.dx})) {
      Launch(HeadNormBackwardKernel<true, T>, shape, context.stream, b);
    } else {
      Launch(HeadNormBackwardKernel<false, T>, shape, context.stream, b);
    }
  });
  AddParts(parts, cut.blocks, a.head_dim, SumTarget::kAdd, {{a.dweight}}, context.stream);
}

}  // namespace tercio::kernels::cuda
