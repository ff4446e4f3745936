// Columns of wider rows, multiplied, dropped and added.
//
// Launch geometry: primitives/rows.cuh; a lane has a group of 16 bytes. Bytes for each element, B =
// 2 or 4: 2 B, B more to accumulate, and B more for a factor of its own. Bound by memory.
#include "kernels/cuda/parts.h"
#include "kernels/cuda/primitives/dropout.cuh"
#include "kernels/cuda/primitives/groups.cuh"
#include "kernels/cuda/primitives/rows.cuh"

namespace tercio::kernels::cuda {
namespace {

template <typename T>
struct CombineColumns {
  static constexpr int kWidth = kGroup<T>;
  const T* from;
  const T* times;  // or null
  T* to;
  int64_t from_stride, times_stride, to_stride;
  float factor;
  bool accumulate;
  DropoutBits dropout;
  int64_t first_channel;

  template <bool kAligned>
  __device__ __forceinline__ void Run(int64_t row, int64_t column, int64_t count) const {
    float value[kWidth];
    LoadGroup<kAligned>(from + row * from_stride + column, count, value);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) value[j] *= factor;
    if (times != nullptr) {
      float of_element[kWidth];
      LoadGroup<kAligned>(times + row * times_stride + column, count, of_element);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) value[j] *= of_element[j];
    }
    DropGroup(dropout, row, first_channel + column, value);
    T* const at = to + row * to_stride + column;
    if (accumulate) {
      float sum[kWidth];
      LoadGroup<kAligned>(at, count, sum);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) value[j] += sum[j];
    }
    StoreGroup<kAligned>(value, count, at);
  }
};

}  // namespace

void ColumnsCuda(const ColumnsArgs& a, const CudaContext& context) {
  ByStorage(a.to.stored(), [&]<typename T>() {
    const CombineColumns<T> operation{As<T>(a.from),  As<T>(a.times), As<T>(a.to),
                                      a.from_stride,  a.times_stride, a.to_stride,
                                      a.factor,       a.accumulate,   MakeDropoutBits(a.dropout),
                                      a.first_channel};
    // Every stride has to be a multiple of 16 bytes.
    const bool aligned =
        Aligned({operation.from, operation.to, operation.times}, a.from_stride, sizeof(T)) &&
        Aligned({nullptr}, a.to_stride, sizeof(T)) && Aligned({nullptr}, a.times_stride, sizeof(T));
    LaunchRows(operation, a.rows, a.columns, aligned, context.stream);
  });
}

}  // namespace tercio::kernels::cuda
