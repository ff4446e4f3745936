// Values in 8 bits, as they are and transposed, in one pass, and the scales for them.
//
// Launch geometry: quantizing, a block has 64 x 64 values, of which a thread reads a group of 16,
// and writes 16 bytes of a row and, through shared memory, of a transposed one
// (primitives/eight_bits.cuh). Looking for the largest value, threads of up to 1,024 blocks walk
// over groups. Bytes for each value, B = 2 or 4: B + 1 for each of both results; B for the largest.
// Bound by memory.
#include <algorithm>

#include "kernels/cuda/parts.h"
#include "kernels/cuda/primitives/eight_bits.cuh"
#include "kernels/cuda/scratch.h"

namespace tercio::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWidth = 16;  // width of a group
constexpr int64_t kMaxBlocks = 1024;

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

// Values that are there.
template <typename T>
struct Stored {
  const T* x;
  int64_t columns;

  template <bool kAligned>
  __device__ __forceinline__ void Make(int64_t row, int64_t column, int64_t count,
                                       float (&values)[kTileWidth]) const {
    LoadGroup<kAligned>(x + row * columns + column, count, values);
  }
};

template <Format kFormat, typename T>
void QuantizeStored(const QuantizeArgs& a, cudaStream_t stream) {
  const Stored<T> source{As<T>(a.x), a.columns};
  const TileOutput to = OutputOf(a);
  if (Aligned({source.x}, a.columns, sizeof(T)) && Aligned(to)) {
    LaunchQuantize<true, kFormat>(source, to, stream);
  } else {
    LaunchQuantize<false, kFormat>(source, to, stream);
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
      QuantizeStored<Format::kE4m3, T>(a, context.stream);
    } else {
      QuantizeStored<Format::kE5m2, T>(a, context.stream);
    }
  });
}

}  // namespace tercio::kernels::cuda
