// Launch geometry: a fixed number of blocks, of 8 warps; a warp has a row at a time. Bytes: both
// matrices once, the expected one twice. Flags are words to which any thread writes the same 1.
#include <cmath>

#include "kernels/cuda/attention_check.h"
#include "kernels/cuda/primitives/groups.cuh"
#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/primitives/reduce.cuh"

namespace tercio::kernels::cuda {
namespace {

constexpr int kWarps = 8;

__device__ __forceinline__ bool IsNumber(float value) { return fabsf(value) < INFINITY; }

// The largest finite magnitude of a block's rows.
template <typename T>
__global__ void __launch_bounds__(kWarps* kWarpThreads)
    PeakKernel(const T* values, int64_t rows, int64_t columns, int64_t stride, float* peaks) {
  __shared__ float of_warps[kWarps];
  float peak = 0;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.y; row < rows;
       row += static_cast<int64_t>(kCheckBlocks) * kWarps) {
    for (int64_t c = threadIdx.x; c < columns; c += kWarpThreads) {
      const float value = fabsf(ToFloat(values[row * stride + c]));
      if (IsNumber(value)) peak = fmaxf(peak, value);
    }
  }
  peak = WarpMax(peak);
  if (threadIdx.x == 0) of_warps[threadIdx.y] = peak;
  __syncthreads();
  if (threadIdx.x != 0 || threadIdx.y != 0) return;
  for (int warp = 1; warp < kWarps; ++warp) peak = fmaxf(peak, of_warps[warp]);
  peaks[blockIdx.x] = peak;
}

template <typename T>
struct Rows {
  const T* expected;
  const T* actual;
  int64_t rows, columns, expected_stride, actual_stride;
};

template <typename T>
__global__ void __launch_bounds__(kWarps* kWarpThreads)
    CompareKernel(const __grid_constant__ Rows<T> r, float tolerance, const float* peaks,
                  CheckFlags* flags) {
  float peak = 0;
  for (int block = 0; block < kCheckBlocks; ++block) peak = fmaxf(peak, peaks[block]);
  const float allowed = tolerance * peak;
  bool differ = false;
  bool undecided = false;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.y; row < r.rows;
       row += static_cast<int64_t>(kCheckBlocks) * kWarps) {
    for (int64_t c = threadIdx.x; c < r.columns; c += kWarpThreads) {
      const float expected = ToFloat(r.expected[row * r.expected_stride + c]);
      const float actual = ToFloat(r.actual[row * r.actual_stride + c]);
      if (!IsNumber(expected) || !IsNumber(actual)) {
        undecided = true;
      } else if (fabsf(expected - actual) > allowed) {
        differ = true;
      }
    }
  }
  if (differ) flags->differ = 1;
  if (peak > 0) flags->compared = 1;
  if (undecided) flags->undecided = 1;
}

}  // namespace

void CheckCuda(const TwoResults& two, float tolerance, float* peaks, CheckFlags* flags,
               cudaStream_t stream) {
  const LaunchShape shape{dim3(kCheckBlocks), dim3(kWarpThreads, kWarps)};
  ByStorage(two.expected.stored(), [&]<typename T>() {
    const Rows<T> rows{As<T>(two.expected), As<T>(two.actual),   two.rows,
                       two.columns,         two.expected_stride, two.actual_stride};
    Launch(PeakKernel<T>, shape, stream, rows.expected, rows.rows, rows.columns,
           rows.expected_stride, peaks);
    Launch(CompareKernel<T>, shape, stream, rows, tolerance, static_cast<const float*>(peaks),
           flags);
  });
}

}  // namespace tercio::kernels::cuda
