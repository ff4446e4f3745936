// Values in 8 bits, as they are and transposed, in one pass, and the scales for them.
//
// Launch geometry: quantizing, a block has 64 x 64 values, of which a thread reads a group of 16,
// and writes 16 bytes of a row and, through shared memory, of a transposed one. Looking for the
// largest value, threads of up to 1,024 blocks walk over groups. Bytes for each value, B = 2 or 4:
// B + 1 for each of both results; B for the largest. Bound by memory.
//
// Blocks meet in the largest magnitude by an atomic maximum of integers, which no order changes:
// the bits of floats that are not negative are ordered as they are.
#include <cuda_fp8.h>

#include <algorithm>

#include "kernels/cuda/parts.h"
#include "kernels/cuda/primitives/groups.cuh"
#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/primitives/reduce.cuh"
#include "kernels/cuda/scratch.h"

namespace tercio::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWidth = 16;  // width of a group: 16 bytes of 8-bit values
constexpr int kTile = 64;   // rows and columns of a block
// Bytes between rows in shared memory: threads that read columns meet other banks.
constexpr int kStride = kTile + 4;
constexpr int kGroupsOfRow = kTile / kWidth;
constexpr int64_t kMaxBlocks = 1024;
constexpr int64_t kMaxRowTiles = 65535;

// The bits of x, which was scaled.
template <Format kFormat>
__device__ __forceinline__ uint8_t EightBits(float x) {
  // Infinite: a NaN, which saturation would hide.
  const float finite = fabsf(x) <= 3.402823466e38f ? x : __uint_as_float(0x7fffffffu);
  return __nv_cvt_float_to_fp8(finite, __NV_SATFINITE,
                               kFormat == Format::kE4m3 ? __NV_E4M3 : __NV_E5M2);
}

// Merges `mine` of every thread into *largest. All threads of the block take part.
__device__ __forceinline__ void MeetInLargest(float mine, float* largest) {
  const float of_block = BlockMax(mine);
  if (threadIdx.x != 0) return;
  atomicMax(reinterpret_cast<unsigned int*>(largest), __float_as_uint(of_block));
}

template <bool kAligned, typename T>
__global__ void __launch_bounds__(kThreads)
    LargestKernel(const T* x, int64_t count, float* largest) {
  float mine = 0;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads * kWidth;
  for (int64_t at = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kWidth;
       at < count; at += step) {
    float values[kWidth];
    LoadGroup<kAligned>(x + at, count - at, values);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) mine = fmaxf(mine, fabsf(values[j]));
  }
  MeetInLargest(mine, largest);
}

__global__ void ScaleKernel(Format format, const float* largest, Scale* scale) {
  *scale = ScaleFor(format, *largest);
}

template <typename T>
struct QuantizeWork {
  const T* x;
  uint8_t* plain;
  uint8_t* transposed;
  const Scale* scale;
  float* largest;
  int64_t rows, columns;
};

// The first `count` (or all) of them.
template <bool kAligned>
__device__ __forceinline__ void StoreBytes(const Elements<uint8_t, kWidth>& bytes, int64_t count,
                                           uint8_t* to) {
  if (kAligned && count >= kWidth) return bytes.Store(to);
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    if (j < count) to[j] = bytes.values[j];
  }
}

// A group of the tile: reads it, writes it as it is and into shared memory.
template <bool kAligned, Format kFormat, typename T>
__device__ __forceinline__ void QuantizeGroup(const QuantizeWork<T>& work, float multiplier,
                                              int64_t row, int64_t column, uint8_t* shared,
                                              float* mine) {
  const int64_t count = work.columns - column;
  const int64_t at = row * work.columns + column;
  float values[kWidth];
  LoadGroup<kAligned>(work.x + at, count, values);
  Elements<uint8_t, kWidth> bytes;
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    *mine = fmaxf(*mine, fabsf(values[j]));
    bytes.values[j] = EightBits<kFormat>(values[j] * multiplier);
    shared[j] = bytes.values[j];
  }
  if (work.plain != nullptr) StoreBytes<kAligned>(bytes, count, work.plain + at);
}

// Column `column` of the matrix, rows [row, row + kWidth), from shared memory.
template <bool kAligned, typename T>
__device__ __forceinline__ void WriteTurned(const QuantizeWork<T>& work, int64_t row,
                                            int64_t column, const uint8_t* shared) {
  const int64_t count = work.rows - row;
  if (column >= work.columns || count <= 0) return;
  Elements<uint8_t, kWidth> bytes;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) bytes.values[i] = shared[i * kStride];
  StoreBytes<kAligned>(bytes, count, work.transposed + column * work.rows + row);
}

template <bool kAligned, Format kFormat, typename T>
__global__ void __launch_bounds__(kThreads)
    QuantizeKernel(const __grid_constant__ QuantizeWork<T> work) {
  auto* shared = DynamicShared<uint8_t>();  // (kTile, kStride)
  const float multiplier = work.scale->multiplier;
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t left = static_cast<int64_t>(blockIdx.x) * kTile;
  float mine = 0;
  for (int64_t top = static_cast<int64_t>(blockIdx.y) * kTile; top < work.rows;
       top += static_cast<int64_t>(gridDim.y) * kTile) {
    for (int group = thread; group < kTile * kGroupsOfRow; group += kThreads) {
      const int row = group / kGroupsOfRow;
      const int column = group % kGroupsOfRow * kWidth;
      if (top + row >= work.rows || left + column >= work.columns) continue;
      QuantizeGroup<kAligned, kFormat>(work, multiplier, top + row, left + column,
                                       shared + row * kStride + column, &mine);
    }
    if (work.transposed == nullptr) continue;
    __syncthreads();
    for (int part = thread; part < kTile * kTile / kWidth; part += kThreads) {
      const int column = part / (kTile / kWidth);
      const int row = part % (kTile / kWidth) * kWidth;
      WriteTurned<kAligned>(work, top + row, left + column, shared + row * kStride + column);
    }
    __syncthreads();
  }
  if (work.largest != nullptr) MeetInLargest(mine, work.largest);
}

template <Format kFormat, typename T>
void LaunchQuantize(const QuantizeArgs& a, cudaStream_t stream) {
  const QuantizeWork<T> work = {As<T>(a.x),
                                reinterpret_cast<uint8_t*>(a.plain.data()),
                                reinterpret_cast<uint8_t*>(a.transposed.data()),
                                a.scale,
                                a.largest,
                                a.rows,
                                a.columns};
  const bool aligned = Aligned({work.x}, a.columns, sizeof(T)) &&
                       (work.plain == nullptr || Aligned({work.plain}, a.columns, 1)) &&
                       (work.transposed == nullptr || Aligned({work.transposed}, a.rows, 1));
  const int64_t row_tiles = std::min((a.rows + kTile - 1) / kTile, kMaxRowTiles);
  const LaunchShape shape{dim3(static_cast<unsigned>((a.columns + kTile - 1) / kTile),
                               static_cast<unsigned>(row_tiles)),
                          kThreads, size_t{kTile} * kStride};
  if (aligned) {
    Launch(QuantizeKernel<true, kFormat, T>, shape, stream, work);
  } else {
    Launch(QuantizeKernel<false, kFormat, T>, shape, stream, work);
  }
}

}  // namespace

void ChooseScaleCuda(const ChooseScaleArgs& a, const CudaContext& context) {
  auto* largest = context.Scratch<float>(kScaleBytes);
  CheckLaunch(cudaMemsetAsync(largest, 0, sizeof(float), context.stream), "cudaMemsetAsync", {});
  const int64_t groups = (a.count + kWidth - 1) / kWidth;
  const int64_t blocks = std::min(kMaxBlocks, (groups + kThreads - 1) / kThreads);
  if (blocks > 0) {
    ByStorage(a.x.stored(), [&]<typename T>() {
      const T* x = As<T>(a.x);
      const LaunchShape shape{dim3(static_cast<unsigned>(blocks)), kThreads};
      if (Aligned({x}, 0, sizeof(T))) {
        Launch(LargestKernel<true, T>, shape, context.stream, x, a.count, largest);
      } else {
        Launch(LargestKernel<false, T>, shape, context.stream, x, a.count, largest);
      }
    });
  }
  Launch(ScaleKernel, {1, 1}, context.stream, a.format, largest, a.scale);
}

void QuantizeCuda(const QuantizeArgs& a, const CudaContext& context) {
  if (a.rows == 0 || a.columns == 0) return;
  const ConstValues some = a.plain == nullptr ? a.transposed : a.plain;
  TERCIO_CHECK(IsEightBits(some.stored()) && some.stored() == some.format());
  TERCIO_CHECK(a.transposed == nullptr || a.transposed.stored() == some.stored());
  ByStorage(a.x.stored(), [&]<typename T>() {
    if (some.format() == Format::kE4m3) {
      LaunchQuantize<Format::kE4m3, T>(a, context.stream);
    } else {
      LaunchQuantize<Format::kE5m2, T>(a, context.stream);
    }
  });
}

}  // namespace tercio::kernels::cuda
