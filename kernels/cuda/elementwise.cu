#include <algorithm>

#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/primitives/split.h"
#include "kernels/cuda/primitives/vector.cuh"
#include "kernels/cuda/scratch.h"

namespace tercio::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarp = 32;
constexpr int64_t kMaxBlocks = 1024;  // blocks of loops over the grid
constexpr uint32_t kFactor = 0x9e3779b1u;

// Groups hold 16 bytes of the smallest element.
template <typename A, typename B>
constexpr int kWidth = static_cast<int>(16 / (sizeof(A) < sizeof(B) ? sizeof(A) : sizeof(B)));

template <typename T>
struct AddElements {
  T* a;
  const T* b;
  template <int kCount>
  __device__ __forceinline__ void Run(int64_t i) const {
    Elements<T, kCount> x, y;
    x.Load(a + i);
    y.Load(b + i);
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      x.values[j] = FromFloat<T>(ToFloat(x.values[j]) + ToFloat(y.values[j]));
    }
    x.Store(a + i);
  }
};

template <typename T>
struct MultiplyElements {
  T* a;
  float factor;
  template <int kCount>
  __device__ __forceinline__ void Run(int64_t i) const {
    Elements<T, kCount> x;
    x.Load(a + i);
#pragma unroll
    for (int j = 0; j < kCount; ++j) x.values[j] = FromFloat<T>(ToFloat(x.values[j]) * factor);
    x.Store(a + i);
  }
};

template <typename To, typename From>
struct ConvertElements {
  To* to;
  const From* from;
  template <int kCount>
  __device__ __forceinline__ void Run(int64_t i) const {
    Elements<From, kCount> x;
    Elements<To, kCount> y;
    x.Load(from + i);
#pragma unroll
    for (int j = 0; j < kCount; ++j) y.values[j] = FromFloat<To>(ToFloat(x.values[j]));
    y.Store(to + i);
  }
};

template <typename T>
struct CopyElements {
  T* to;
  const T* from;
  template <int kCount>
  __device__ __forceinline__ void Run(int64_t i) const {
    Elements<T, kCount> x;
    x.Load(from + i);
    x.Store(to + i);
  }
};

// A thread takes every (threads of the grid)th group, then likewise single elements of both ends.
template <int kGroup, typename Operation>
__global__ void __launch_bounds__(kThreads)
    ElementwiseKernel(const __grid_constant__ Operation operation,
                      const __grid_constant__ Split split) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t group = first; group < split.groups; group += step) {
    operation.template Run<kGroup>(split.head + group * kGroup);
  }
  const int64_t grouped = split.groups * kGroup;
  for (int64_t i = first; i < split.count - grouped; i += step) {
    operation.template Run<1>(i < split.head ? i : i + grouped);
  }
}

template <int kGroup, typename Operation>
void LaunchElementwise(const Operation& operation, const Split& split, cudaStream_t stream) {
  if (split.count == 0) return;
  const int64_t items = std::max(split.groups, split.count - split.groups * kGroup);
  const int64_t blocks = std::min(kMaxBlocks, (items + kThreads - 1) / kThreads);
  Launch(ElementwiseKernel<kGroup, Operation>, {dim3(static_cast<unsigned>(blocks)), kThreads},
         stream, operation, split);
}

__device__ __forceinline__ uint64_t WarpSum(uint64_t value) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    value += __shfl_down_sync(0xffffffffu, value, static_cast<unsigned>(distance));
  }
  return value;
}

// The sum over the block, in thread 0. Modulo 2^64 no order matters.
__device__ __forceinline__ uint64_t BlockSum(uint64_t value) {
  __shared__ uint64_t sums[kThreads / kWarp];
  value = WarpSum(value);
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if (lane == 0) sums[warp] = value;
  __syncthreads();
  uint64_t total = 0;
  if (threadIdx.x == 0) {
    for (const uint64_t part : sums) total += part;
  }
  return total;
}

// kRows: rows do not follow each other in the numbers of elements.
template <typename T, bool kRows>
__global__ void __launch_bounds__(kThreads)
    DigestKernel(const T* a, int64_t count, ElementNumbers numbers, uint64_t* parts) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  uint64_t sum = 0;
  for (int64_t i = first; i < count; i += step) {
    int64_t number = numbers.first + i;
    if constexpr (kRows) number += i / numbers.columns * (numbers.stride - numbers.columns);
    const uint32_t factor = (2 * static_cast<uint32_t>(number) + 1) * kFactor;
    sum += static_cast<uint64_t>(BitsOf(a[i])) * factor;
  }
  const uint64_t total = BlockSum(sum);
  if (threadIdx.x == 0) parts[blockIdx.x] = total;
}

__global__ void __launch_bounds__(kThreads)
    AddDigestsKernel(const uint64_t* parts, int64_t count, uint64_t* digest) {
  uint64_t sum = 0;
  for (int64_t i = threadIdx.x; i < count; i += kThreads) sum += parts[i];
  const uint64_t total = BlockSum(sum);
  if (threadIdx.x == 0) *digest = total;
}

int64_t DigestBlocks(int64_t count) { return DigestBytes(count) / 8; }

}  // namespace

template <typename T>
void Add(T* a, const T* b, int64_t count, cudaStream_t stream) {
  constexpr int kGroup = kWidth<T, T>;
  LaunchElementwise<kGroup>(AddElements<T>{a, b},
                            SplitForGroups(count, kGroup, {a, sizeof(T)}, {b, sizeof(T)}), stream);
}

template <typename T>
void MultiplyBy(T* a, float factor, int64_t count, cudaStream_t stream) {
  constexpr int kGroup = kWidth<T, T>;
  LaunchElementwise<kGroup>(MultiplyElements<T>{a, factor},
                            SplitForGroups(count, kGroup, {a, sizeof(T)}, {a, sizeof(T)}), stream);
}

template <typename T>
void Zero(T* a, int64_t count, cudaStream_t stream) {
  CheckLaunch(cudaMemsetAsync(a, 0, static_cast<size_t>(count) * sizeof(T), stream),
              "cudaMemsetAsync", {});
}

template <typename To, typename From>
void Convert(To* to, const From* from, int64_t count, cudaStream_t stream) {
  constexpr int kGroup = kWidth<To, From>;
  const Split split = SplitForGroups(count, kGroup, {to, sizeof(To)}, {from, sizeof(From)});
  if constexpr (std::is_same_v<To, From>) {
    LaunchElementwise<kGroup>(CopyElements<To>{to, from}, split, stream);
  } else {
    LaunchElementwise<kGroup>(ConvertElements<To, From>{to, from}, split, stream);
  }
}

template <typename T>
void Digest(const T* a, int64_t count, const ElementNumbers& numbers, const DigestMemory& memory,
            cudaStream_t stream) {
  const int64_t blocks = DigestBlocks(count);
  if (blocks > 0) {
    const bool follow = count == numbers.columns || numbers.stride == numbers.columns;
    Launch(follow ? DigestKernel<T, false> : DigestKernel<T, true>,
           {dim3(static_cast<unsigned>(blocks)), kThreads}, stream, a, count, numbers,
           memory.scratch);
  }
  Launch(AddDigestsKernel, {1, kThreads}, stream, memory.scratch, blocks, memory.digest);
}

#define INSTANTIATE(T)                                            \
  template void Add(T*, const T*, int64_t, cudaStream_t);         \
  template void MultiplyBy(T*, float, int64_t, cudaStream_t);     \
  template void Zero(T*, int64_t, cudaStream_t);                  \
  template void Convert(T*, const float*, int64_t, cudaStream_t); \
  template void Digest(const T*, int64_t, const ElementNumbers&, const DigestMemory&, cudaStream_t)
INSTANTIATE(float);
INSTANTIATE(__nv_bfloat16);
INSTANTIATE(__half);
#undef INSTANTIATE
template void Convert(float*, const __nv_bfloat16*, int64_t, cudaStream_t);
template void Convert(float*, const __half*, int64_t, cudaStream_t);
template void Convert(__nv_bfloat16*, const __nv_bfloat16*, int64_t, cudaStream_t);
template void Convert(__half*, const __half*, int64_t, cudaStream_t);

}  // namespace tercio::kernels::cuda
