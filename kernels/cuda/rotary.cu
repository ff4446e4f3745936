// Rotary positions, in place.
//
// Launch geometry: primitives/rows.cuh over rows * heads and half of the channels that are turned,
// where a lane has a group of the lower half and its partners of the upper half; or, where pairs
// are neighbours, over all of them, a lane with the pairs of a group. Bytes for each element that
// is turned, B = 2 or 4: 2 B, and the table, which stays in cache. Bound by memory.
#include "kernels/cuda/parts.h"
#include "kernels/cuda/primitives/groups.cuh"
#include "kernels/cuda/primitives/rows.cuh"

namespace tercio::kernels::cuda {
namespace {

// Where a head and its angles lie. turned: channels of a head.
template <typename T>
struct Heads {
  T* x;
  const float* table;
  const int32_t* positions;  // null: those of a sequence
  int64_t tokens, stride, heads, head_dim, turned;
  float sign;

  __device__ __forceinline__ T* HeadOf(int64_t item) const {
    return x + item / heads * stride + item % heads * head_dim;
  }
  __device__ __forceinline__ const float* AnglesOf(int64_t item) const {
    const int64_t row = item / heads;
    return table + (positions == nullptr ? row % tokens : positions[row]) * turned;
  }
};

// a and b become a c - b s and a s + b c.
__device__ __forceinline__ void Turn(float c, float s, float& a, float& b) {
  const float turned = fmaf(-b, s, a * c);
  b = fmaf(a, s, b * c);
  a = turned;
}

template <typename T>
struct RotateHalves {
  static constexpr int kWidth = kGroup<T>;
  Heads<T> h;

  template <bool kAligned>
  __device__ __forceinline__ void Run(int64_t item, int64_t column, int64_t count) const {
    const int64_t half = h.turned / 2;
    T* low = h.HeadOf(item) + column;
    const float* angles = h.AnglesOf(item) + column;
    float cosine[kWidth], sine[kWidth], a[kWidth], b[kWidth];
    LoadGroup<kAligned>(angles, count, cosine);
    LoadGroup<kAligned>(angles + half, count, sine);
    LoadGroup<kAligned>(low, count, a);
    LoadGroup<kAligned>(low + half, count, b);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) Turn(cosine[j], sine[j] * h.sign, a[j], b[j]);
    StoreGroup<kAligned>(a, count, low);
    StoreGroup<kAligned>(b, count, low + half);
  }
};

template <typename T>
struct RotateNeighbours {
  static constexpr int kWidth = kGroup<T>;
  Heads<T> h;

  template <bool kAligned>
  __device__ __forceinline__ void Run(int64_t item, int64_t column, int64_t count) const {
    T* at = h.HeadOf(item) + column;
    const float* angles = h.AnglesOf(item) + column / 2;
    float cosine[kWidth / 2], sine[kWidth / 2], x[kWidth];
    LoadGroup<false>(angles, count / 2, cosine);
    LoadGroup<false>(angles + h.turned / 2, count / 2, sine);
    LoadGroup<kAligned>(at, count, x);
#pragma unroll
    for (int j = 0; j < kWidth / 2; ++j) {
      Turn(cosine[j], sine[j] * h.sign, x[2 * j], x[2 * j + 1]);
    }
    StoreGroup<kAligned>(x, count, at);
  }
};

}  // namespace

void RotaryCuda(const RotaryArgs& a, const CudaContext& context) {
  TERCIO_CHECK_EQ(a.turned() % 2, 0);
  TERCIO_CHECK_LE(a.turned(), a.head_dim);
  ByStorage(a.x.stored(), [&]<typename T>() {
    const Heads<T> heads{As<T>(a.x), a.table,    a.positions,
                         a.tokens,   a.stride,   a.heads,
                         a.head_dim, a.turned(), a.inverse ? -1.0f : 1.0f};
    const bool heads_aligned =
        Aligned({heads.x}, a.stride, sizeof(T)) && Aligned({}, a.head_dim, sizeof(T));
    if (a.interleaved) {
      return LaunchRows(RotateNeighbours<T>{heads}, a.rows * a.heads, a.turned(), heads_aligned,
                        context.stream);
    }
    const bool aligned = heads_aligned && Aligned({a.table}, a.turned() / 2, sizeof(T));
    LaunchRows(RotateHalves<T>{heads}, a.rows * a.heads, a.turned() / 2, aligned, context.stream);
  });
}

}  // namespace tercio::kernels::cuda
