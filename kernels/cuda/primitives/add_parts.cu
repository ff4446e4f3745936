// The second step of sums over rows.
//
// Launch geometry: blocks of 32 x 8 threads own 32 columns of one sum; thread y adds blocks of rows
// y, y + 8, ..., then its first warp adds the eight sums in ascending order. Reads 4 bytes for each
// part.
#include "kernels/cuda/primitives/rows.cuh"

namespace tercio::kernels::cuda {
namespace {

__global__ void __launch_bounds__(kRowsThreads)
    AddPartsKernel(const float* all_parts, int64_t blocks, int64_t columns, bool accumulate,
                   const __grid_constant__ SumOutputs outs) {
  float* out = blockIdx.y == 0 ? outs.of[0] : outs.of[1];
  if (out == nullptr) return;
  const float* parts = all_parts + blockIdx.y * blocks * columns;
  auto* shared = DynamicShared<float>();  // (kRowThreads, kLanes)
  const int lane = static_cast<int>(threadIdx.x);
  const int thread = static_cast<int>(threadIdx.y);
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kLanes + lane;
  float sum = 0;
  if (column < columns) {
    // Loads do not wait for sums: there are few blocks, so that latency is what they take.
#pragma unroll 8
    for (int64_t block = thread; block < blocks; block += kRowThreads) {
      sum += parts[block * columns + column];
    }
  }
  shared[thread * kLanes + lane] = sum;
  __syncthreads();
  if (thread != 0 || column >= columns) return;
  float total = 0;
  for (int i = 0; i < kRowThreads; ++i) total += shared[i * kLanes + lane];
  out[column] = accumulate ? out[column] + total : total;
}

}  // namespace

void AddParts(const float* parts, int64_t blocks, int64_t columns, SumTarget target,
              const SumOutputs& outs, cudaStream_t stream) {
  if (columns == 0) return;
  const unsigned sums = outs.of[1] == nullptr ? 1 : kMostSums;
  Launch(AddPartsKernel,
         {dim3(static_cast<unsigned>((columns + kLanes - 1) / kLanes), sums),
          dim3(kLanes, kRowThreads), kRowsThreads * sizeof(float)},
         stream, parts, blocks, columns, target == SumTarget::kAdd, outs);
}

}  // namespace tercio::kernels::cuda
