// Kernels over (rows, columns): element-wise ones, and sums over the rows of each column, which are
// deterministic without atomic operations. An operation is a struct that is passed by value:
//
//   static constexpr int kWidth;    // columns of a group, a multiple of 4
//   template <bool kAligned> __device__ void Run(int64_t row, int64_t column, int64_t count) const;
//   // or, for sums, with kSums of them:
//   template <bool kAligned> __device__ void Run(int64_t row, int64_t column, int64_t count,
//                                                float (&sums)[kSums][kWidth]) const;
//
// It does columns [column, column + count) of a row, column a multiple of kWidth, count <= kWidth.
//
// Launch geometry: blocks of 32 x 8 threads; a warp has a row at a time, a lane a group of it.
#pragma once

#include <algorithm>

#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/scratch.h"

namespace tercio::kernels::cuda {

inline constexpr int kLanes = 32;
inline constexpr int kRowThreads = 8;
inline constexpr int kRowsThreads = kLanes * kRowThreads;

// Blocks that an SM is to hold at least, for operations that name such a number; 0: as the compiler
// likes, which is mostly more. For those it likes so many that it would spill registers.
template <bool kAligned, typename Operation>
constexpr int LeastBlocksOf() {
  if constexpr (requires { Operation::template kLeastBlocks<kAligned>; }) {
    return Operation::template kLeastBlocks<kAligned>;
  }
  return 0;
}

template <bool kAligned, typename Operation>
__global__ void __launch_bounds__(kRowsThreads, LeastBlocksOf<kAligned, Operation>())
    RowsKernel(const __grid_constant__ Operation operation, int64_t rows, int64_t columns) {
  constexpr int kWidth = Operation::kWidth;
  const int64_t first = (static_cast<int64_t>(blockIdx.y) * kLanes + threadIdx.x) * kWidth;
  const int64_t step = static_cast<int64_t>(gridDim.y) * kLanes * kWidth;
  const int64_t row_step = static_cast<int64_t>(gridDim.x) * kRowThreads;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * kRowThreads + threadIdx.y; row < rows;
       row += row_step) {
    for (int64_t column = first; column < columns; column += step) {
      const int64_t rest = columns - column;
      operation.template Run<kAligned>(row, column, rest < kWidth ? rest : kWidth);
    }
  }
}

template <typename Operation>
void LaunchRows(const Operation& operation, int64_t rows, int64_t columns, bool aligned,
                cudaStream_t stream) {
  if (rows == 0 || columns == 0) return;
  constexpr int64_t kColumnsOfBlock = 4 * kLanes * Operation::kWidth;
  const LaunchShape shape{dim3(static_cast<unsigned>(std::min<int64_t>(
                                   (rows + kRowThreads - 1) / kRowThreads, int64_t{1} << 20)),
                               static_cast<unsigned>(std::min<int64_t>(
                                   (columns + kColumnsOfBlock - 1) / kColumnsOfBlock, 1024))),
                          dim3(kLanes, kRowThreads)};
  if (aligned) {
    Launch(RowsKernel<true, Operation>, shape, stream, operation, rows, columns);
  } else {
    Launch(RowsKernel<false, Operation>, shape, stream, operation, rows, columns);
  }
}

// Elements without rows, in pieces that are given to warps. The operation's row is 0.
template <typename Operation>
struct Flat {
  static constexpr int kWidth = Operation::kWidth;
  template <bool kAligned>
  static constexpr int kLeastBlocks = LeastBlocksOf<kAligned, Operation>();
  static constexpr int64_t kPiece = 4 * kLanes * kWidth;
  Operation operation;
  int64_t count;

  template <bool kAligned>
  __device__ __forceinline__ void Run(int64_t piece, int64_t column, int64_t) const {
    const int64_t at = piece * kPiece + column;
    const int64_t rest = count - at;
    if (rest <= 0) return;
    operation.template Run<kAligned>(0, at, rest < kWidth ? rest : kWidth);
  }
};

template <typename Operation>
void LaunchFlat(const Operation& operation, int64_t count, bool aligned, cudaStream_t stream) {
  using Pieces = Flat<Operation>;
  LaunchRows(Pieces{operation, count}, (count + Pieces::kPiece - 1) / Pieces::kPiece,
             Pieces::kPiece, aligned, stream);
}

// parts[sum][block of rows][column]: thread y of a lane adds rows y, y + 8, ... of the block of
// rows, then the eight sums are added in ascending order.
template <bool kAligned, typename Operation>
__global__ void __launch_bounds__(kRowsThreads)
    ColumnPartsKernel(const __grid_constant__ Operation operation, int64_t rows, int64_t columns,
                      int64_t rows_per_block, float* parts) {
  constexpr int kWidth = Operation::kWidth;
  constexpr int kSums = Operation::kSums;
  auto* shared = DynamicShared<float>();  // (kSums * kWidth, kRowThreads, kLanes)
  const int lane = static_cast<int>(threadIdx.x);
  const int thread = static_cast<int>(threadIdx.y);
  const int64_t column = (static_cast<int64_t>(blockIdx.x) * kLanes + lane) * kWidth;
  const int64_t count = columns - column < kWidth ? columns - column : kWidth;
  const int64_t begin = static_cast<int64_t>(blockIdx.y) * rows_per_block;
  const int64_t end = begin + rows_per_block < rows ? begin + rows_per_block : rows;
  float sums[kSums][kWidth] = {};
  if (count > 0) {
    for (int64_t row = begin + thread; row < end; row += kRowThreads) {
      operation.template Run<kAligned>(row, column, count, sums);
    }
  }
#pragma unroll
  for (int item = 0; item < kSums * kWidth; ++item) {
    shared[(item * kRowThreads + thread) * kLanes + lane] = sums[item / kWidth][item % kWidth];
  }
  __syncthreads();
  for (int item = thread; item < kSums * kWidth; item += kRowThreads) {
    float total = 0;
    for (int i = 0; i < kRowThreads; ++i) total += shared[(item * kRowThreads + i) * kLanes + lane];
    const int64_t row_block = static_cast<int64_t>(item / kWidth) * gridDim.y + blockIdx.y;
    if (item % kWidth < count) parts[row_block * columns + column + item % kWidth] = total;
  }
}

// What becomes of the values where sums go: they are replaced, or added to.
enum class SumTarget { kReplace, kAdd };

// Where the sums of a launch go; null: that one is not wanted.
inline constexpr int kMostSums = 2;
struct SumOutputs {
  float* of[kMostSums] = {};
};

// outs.of[s][column] = or += sum over the blocks, in a fixed order, of parts[s][block][column]; all
// in one launch.
void AddParts(const float* parts, int64_t blocks, int64_t columns, SumTarget target,
              const SumOutputs& outs, cudaStream_t stream);

// outs[s][column] = or += the sum over all rows; null: that sum is not wanted. parts:
// ColumnSumBytes for each of kSums.
template <typename Operation>
void LaunchColumnSums(const Operation& operation, int64_t rows, int64_t columns, bool aligned,
                      float* parts, float* const (&outs)[Operation::kSums], SumTarget target,
                      cudaStream_t stream) {
  static_assert(Operation::kSums <= kMostSums);
  constexpr int64_t kColumnsOfBlock = int64_t{kLanes} * Operation::kWidth;
  const RowBlocks cut = CutRows(rows, kLeastRowsOfSum);
  if (columns == 0) return;
  if (rows > 0) {
    const LaunchShape shape{
        dim3(static_cast<unsigned>((columns + kColumnsOfBlock - 1) / kColumnsOfBlock),
             static_cast<unsigned>(cut.blocks)),
        dim3(kLanes, kRowThreads),
        size_t{Operation::kSums} * Operation::kWidth * kRowsThreads * sizeof(float)};
    if (aligned) {
      Launch(ColumnPartsKernel<true, Operation>, shape, stream, operation, rows, columns,
             cut.rows_per_block, parts);
    } else {
      Launch(ColumnPartsKernel<false, Operation>, shape, stream, operation, rows, columns,
             cut.rows_per_block, parts);
    }
  }
  SumOutputs wanted;
  for (int sum = 0; sum < Operation::kSums; ++sum) wanted.of[sum] = outs[sum];
  AddParts(parts, cut.blocks, columns, target, wanted, stream);
}

}  // namespace tercio::kernels::cuda
