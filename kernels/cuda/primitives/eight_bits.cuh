// Numbers of 8 bits in kernels: rounding, the largest magnitude, and the tile in which a matrix is
// rounded as it is and transposed.
//
// Blocks meet in the largest magnitude by an atomic maximum of integers, which no order changes:
// the bits of floats that are not negative are ordered as they are. Most of them find a larger one
// there already, and then only read it.
#pragma once

#include <cuda_fp8.h>

#include <algorithm>

#include "kernels/cuda/primitives/groups.cuh"
#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/primitives/reduce.cuh"
#include "kernels/ops.h"

namespace tercio::kernels::cuda {

// The bits of x, which was scaled.
template <Format kFormat>
__device__ __forceinline__ uint8_t EightBits(float x) {
  // Infinite: a NaN, which saturation would hide.
  const float finite = fabsf(x) <= 3.402823466e38f ? x : __uint_as_float(0x7fffffffu);
  return __nv_cvt_float_to_fp8(finite, __NV_SATFINITE,
                               kFormat == Format::kE4m3 ? __NV_E4M3 : __NV_E5M2);
}

// Merges `mine` of every lane into *largest. All threads of the warp take part.
__device__ __forceinline__ void MeetInLargest(float mine, float* largest) {
  const float of_warp = WarpMax(mine);
  if (threadIdx.x % kWarpThreads != 0) return;
  // It only grows, so an old value is no reason to miss a larger one.
  if (!(of_warp > *static_cast<volatile float*>(largest))) return;
  atomicMax(reinterpret_cast<unsigned int*>(largest), __float_as_uint(of_warp));
}

inline constexpr int kTileThreads = 256;
inline constexpr int kTileWidth = 16;  // width of a group: 16 bytes of 8-bit values
inline constexpr int kTile = 64;       // rows and columns of a block
// Bytes between rows in shared memory: threads that read columns meet other banks.
inline constexpr int kTileStride = kTile + 4;
inline constexpr int64_t kMaxRowTiles = 65535;

// Where a tile's values go.
struct TileOutput {
  uint8_t* plain;       // or null
  uint8_t* transposed;  // or null
  const Scale* scale;
  float* largest;  // or null
  int64_t rows, columns;
};

inline TileOutput OutputOf(const QuantizeArgs& a) {
  return {reinterpret_cast<uint8_t*>(a.plain.data()),
          reinterpret_cast<uint8_t*>(a.transposed.data()),
          a.scale,
          a.largest,
          a.rows,
          a.columns};
}
// Whether both results can be written 16 bytes at a time.
inline bool Aligned(const TileOutput& to) {
  return (to.plain == nullptr || Aligned({to.plain}, to.columns, 1)) &&
         (to.transposed == nullptr || Aligned({to.transposed}, to.rows, 1));
}

// The first `count` (or all) of them.
template <bool kAligned>
__device__ __forceinline__ void StoreBytes(const Elements<uint8_t, kTileWidth>& bytes,
                                           int64_t count, uint8_t* to) {
  if (kAligned && count >= kTileWidth) return bytes.Store(to);
#pragma unroll
  for (int j = 0; j < kTileWidth; ++j) {
    if (j < count) to[j] = bytes.values[j];
  }
}

// A group of the tile: made by the source, written as it is and into shared memory.
template <bool kAligned, Format kFormat, typename Source>
__device__ __forceinline__ void QuantizeGroup(const Source& source, const TileOutput& to,
                                              float multiplier, int64_t row, int64_t column,
                                              uint8_t* shared, float* mine) {
  const int64_t count = to.columns - column;
  float values[kTileWidth];
  source.template Make<kAligned>(row, column, count, values);
  Elements<uint8_t, kTileWidth> bytes;
#pragma unroll
  for (int j = 0; j < kTileWidth; ++j) {
    *mine = fmaxf(*mine, fabsf(values[j]));
    bytes.values[j] = EightBits<kFormat>(values[j] * multiplier);
    shared[j] = bytes.values[j];
  }
  if (to.plain != nullptr) StoreBytes<kAligned>(bytes, count, to.plain + row * to.columns + column);
}

// Column `column` of the matrix, rows [row, row + kTileWidth), from shared memory.
template <bool kAligned>
__device__ __forceinline__ void WriteTurned(const TileOutput& to, int64_t row, int64_t column,
                                            const uint8_t* shared) {
  const int64_t count = to.rows - row;
  if (column >= to.columns || count <= 0) return;
  Elements<uint8_t, kTileWidth> bytes;
#pragma unroll
  for (int i = 0; i < kTileWidth; ++i) bytes.values[i] = shared[i * kTileStride];
  StoreBytes<kAligned>(bytes, count, to.transposed + column * to.rows + row);
}

// Rounds a matrix of values that the source has or computes. A source is a struct that is passed by
// value, with
//
//   template <bool kAligned> __device__ void Make(int64_t row, int64_t column, int64_t count,
//                                                 float (&values)[kTileWidth]) const;
//
// which makes columns [column, column + count) of a row, at most kTileWidth, zeros after them, and
// may write them as well.
template <bool kAligned, Format kFormat, typename Source>
__global__ void __launch_bounds__(kTileThreads)
    QuantizeKernel(const __grid_constant__ Source source, const __grid_constant__ TileOutput to) {
  constexpr int kGroupsOfRow = kTile / kTileWidth;
  auto* shared = DynamicShared<uint8_t>();  // (kTile, kTileStride)
  const float multiplier = to.scale->multiplier;
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t left = static_cast<int64_t>(blockIdx.x) * kTile;
  float mine = 0;
  for (int64_t top = static_cast<int64_t>(blockIdx.y) * kTile; top < to.rows;
       top += static_cast<int64_t>(gridDim.y) * kTile) {
    for (int group = thread; group < kTile * kGroupsOfRow; group += kTileThreads) {
      const int row = group / kGroupsOfRow;
      const int column = group % kGroupsOfRow * kTileWidth;
      if (top + row >= to.rows || left + column >= to.columns) continue;
      QuantizeGroup<kAligned, kFormat>(source, to, multiplier, top + row, left + column,
                                       shared + row * kTileStride + column, &mine);
    }
    if (to.transposed == nullptr) continue;
    __syncthreads();
    for (int part = thread; part < kTile * kTile / kTileWidth; part += kTileThreads) {
      const int column = part / (kTile / kTileWidth);
      const int row = part % (kTile / kTileWidth) * kTileWidth;
      WriteTurned<kAligned>(to, top + row, left + column, shared + row * kTileStride + column);
    }
    __syncthreads();
  }
  if (to.largest != nullptr) MeetInLargest(mine, to.largest);
}

template <bool kAligned, Format kFormat, typename Source>
void LaunchQuantize(const Source& source, const TileOutput& to, cudaStream_t stream) {
  const int64_t row_tiles = std::min((to.rows + kTile - 1) / kTile, kMaxRowTiles);
  const LaunchShape shape{dim3(static_cast<unsigned>((to.columns + kTile - 1) / kTile),
                               static_cast<unsigned>(row_tiles)),
                          kTileThreads, size_t{kTile} * kTileStride};
  Launch(QuantizeKernel<kAligned, kFormat, Source>, shape, stream, source, to);
}

}  // namespace tercio::kernels::cuda
