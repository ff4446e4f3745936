// Rotary positions, in place.
//
// Launch geometry: primitives/rows.cuh over (rows * heads, head_dim / 2); a lane has a group of the
// lower half and its partners of the upper half.
// Bytes for each element, B = 2 or 4: 2 B, and the table, which stays in cache. Bound by memory.
#include "kernels/cuda/parts.h"
#include "kernels/cuda/primitives/groups.cuh"
#include "kernels/cuda/primitives/rows.cuh"

namespace tercio::kernels::cuda {
namespace {

template <typename T>
struct Rotate {
  static constexpr int kWidth = kGroup<T>;
  T* x;
  const float* table;
  int64_t tokens, stride, heads, head_dim;
  float sign;

  template <bool kAligned>
  __device__ __forceinline__ void Run(int64_t item, int64_t column, int64_t count) const {
    const int64_t row = item / heads;
    const int64_t half = head_dim / 2;
    T* low = x + row * stride + item % heads * head_dim + column;
    const float* angles = table + row % tokens * head_dim + column;
    float cosine[kWidth], sine[kWidth], a[kWidth], b[kWidth];
    LoadGroup<kAligned>(angles, count, cosine);
    LoadGroup<kAligned>(angles + half, count, sine);
    LoadGroup<kAligned>(low, count, a);
    LoadGroup<kAligned>(low + half, count, b);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      const float s = sine[j] * sign;
      const float from_low = a[j];
      a[j] = fmaf(-b[j], s, from_low * cosine[j]);
      b[j] = fmaf(from_low, s, b[j] * cosine[j]);
    }
    StoreGroup<kAligned>(a, count, low);
    StoreGroup<kAligned>(b, count, low + half);
  }
};

}  // namespace

void RotaryCuda(const RotaryArgs& a, const CudaContext& context) {
  ByStorage(a.x.stored(), [&]<typename T>() {
    const Rotate<T> operation{
        As<T>(a.x), a.table, a.tokens, a.stride, a.heads, a.head_dim, a.inverse ? -1.0f : 1.0f};
    const bool aligned = Aligned({operation.x, a.table}, a.stride, sizeof(T)) &&
                         Aligned({}, a.head_dim / 2, sizeof(T));
    LaunchRows(operation, a.rows * a.heads, a.head_dim / 2, aligned, context.stream);
  });
}

}  // namespace tercio::kernels::cuda
