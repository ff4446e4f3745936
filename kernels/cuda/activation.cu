// GELU in both forms, SwiGLU, tanh, and their gradients.
//
// Launch geometry: primitives/rows.cuh; a lane has a group of 16 bytes.
// Bytes for each element of the result, B = 2 or 4: GELU 2 B, its gradient 3 B; SwiGLU 3 B, its
// gradient 5 B; tanh 2 B, its gradient 3 B. Bound by memory.
#include "kernels/cuda/parts.h"
#include "kernels/cuda/primitives/gelu.cuh"
#include "kernels/cuda/primitives/groups.cuh"
#include "kernels/cuda/primitives/rows.cuh"

namespace tercio::kernels::cuda {
namespace {

template <typename T, typename Gelu>
struct ApplyGelu {
  static constexpr int kWidth = kGroup<T>;
  const T* h;
  T* g;
  int64_t columns;

  template <bool kAligned>
  __device__ __forceinline__ void Run(int64_t row, int64_t column, int64_t count) const {
    const int64_t at = row * columns + column;
    float x[kWidth];
    LoadGroup<kAligned>(h + at, count, x);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) x[j] *= Gelu::Share(x[j]);
    StoreGroup<kAligned>(x, count, g + at);
  }
};

template <typename T, typename Gelu>
struct GeluGradient {
  static constexpr int kWidth = kGroup<T>;
  template <bool kAligned>
  static constexpr int kLeastBlocks = kAligned ? 0 : 3;
  const T* dg;
  const T* h;
  T* dh;
  int64_t columns;

  template <bool kAligned>
  __device__ __forceinline__ void Run(int64_t row, int64_t column, int64_t count) const {
    const int64_t at = row * columns + column;
    float g[kWidth], x[kWidth];
    LoadGroup<kAligned>(dg + at, count, g);
    LoadGroup<kAligned>(h + at, count, x);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) g[j] *= Gelu::Slope(x[j]);
    StoreGroup<kAligned>(g, count, dh + at);
  }
};

template <typename T>
struct ApplySwiglu {
  static constexpr int kWidth = kGroup<T>;
  const T* h;
  T* g;
  int64_t columns;

  template <bool kAligned>
  __device__ __forceinline__ void Run(int64_t row, int64_t column, int64_t count) const {
    const T* gate = h + row * 2 * columns + column;
    float x[kWidth], up[kWidth];
    LoadGroup<kAligned>(gate, count, x);
    LoadGroup<kAligned>(gate + columns, count, up);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) x[j] = x[j] * Sigmoid(x[j]) * up[j];
    StoreGroup<kAligned>(x, count, g + row * columns + column);
  }
};

// silu'(x) = s + x s (1 - s)
template <typename T>
struct SwigluGradient {
  static constexpr int kWidth = kGroup<T>;
  const T* dg;
  const T* h;
  T* dh;
  int64_t columns;

  template <bool kAligned>
  __device__ __forceinline__ void Run(int64_t row, int64_t column, int64_t count) const {
    const T* gate = h + row * 2 * columns + column;
    float x[kWidth], up[kWidth], g[kWidth];
    LoadGroup<kAligned>(gate, count, x);
    LoadGroup<kAligned>(gate + columns, count, up);
    LoadGroup<kAligned>(dg + row * columns + column, count, g);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      const float s = Sigmoid(x[j]);
      const float silu = x[j] * s;
      x[j] = g[j] * up[j] * fmaf(silu, 1.0f - s, s);
      up[j] = g[j] * silu;
    }
    T* dgate = dh + row * 2 * columns + column;
    StoreGroup<kAligned>(x, count, dgate);
    StoreGroup<kAligned>(up, count, dgate + columns);
  }
};

template <typename T>
struct ApplyTanh {
  static constexpr int kWidth = kGroup<T>;
  T* y;
  const T* bias;
  int64_t columns;

  template <bool kAligned>
  __device__ __forceinline__ void Run(int64_t row, int64_t column, int64_t count) const {
    float x[kWidth];
    float b[kWidth] = {};
    LoadGroup<kAligned>(y + row * columns + column, count, x);
    if (bias != nullptr) LoadGroup<kAligned>(bias + column, count, b);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) x[j] = tanhf(x[j] + b[j]);
    StoreGroup<kAligned>(x, count, y + row * columns + column);
  }
};

template <typename T>
struct TanhGradient {
  static constexpr int kWidth = kGroup<T>;
  template <bool kAligned>
  static constexpr int kLeastBlocks = 6;
  const T* dy;
  const T* y;
  T* dx;

  template <bool kAligned>
  __device__ __forceinline__ void Run(int64_t, int64_t column, int64_t count) const {
    float g[kWidth], x[kWidth];
    LoadGroup<kAligned>(dy + column, count, g);
    LoadGroup<kAligned>(y + column, count, x);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) g[j] *= 1.0f - x[j] * x[j];
    StoreGroup<kAligned>(g, count, dx + column);
  }
};

template <typename Gelu>
void LaunchGelu(const GeluArgs& a, cudaStream_t stream) {
  ByStorage(a.g.stored(), [&]<typename T>() {
    const ApplyGelu<T, Gelu> operation{As<T>(a.h), As<T>(a.g), a.columns};
    LaunchRows(operation, a.rows, a.columns,
               Aligned({operation.h, operation.g}, a.columns, sizeof(T)), stream);
  });
}

template <typename Gelu>
void LaunchGeluGradient(const GeluBackwardArgs& a, cudaStream_t stream) {
  ByStorage(a.dh.stored(), [&]<typename T>() {
    const GeluGradient<T, Gelu> operation{As<T>(a.dg), As<T>(a.h), As<T>(a.dh), a.columns};
    LaunchRows(operation, a.rows, a.columns,
               Aligned({operation.dg, operation.h, operation.dh}, a.columns, sizeof(T)), stream);
  });
}

}  // namespace

void GeluCuda(const GeluArgs& a, const CudaContext& context) {
  a.exact ? LaunchGelu<ExactGelu>(a, context.stream) : LaunchGelu<TanhGelu>(a, context.stream);
}

void GeluBackwardCuda(const GeluBackwardArgs& a, const CudaContext& context) {
  a.exact ? LaunchGeluGradient<ExactGelu>(a, context.stream)
          : LaunchGeluGradient<TanhGelu>(a, context.stream);
}

void SwigluCuda(const SwigluArgs& a, const CudaContext& context) {
  ByStorage(a.g.stored(), [&]<typename T>() {
    const ApplySwiglu<T> operation{As<T>(a.h), As<T>(a.g), a.columns};
    LaunchRows(operation, a.rows, a.columns,
               Aligned({operation.h, operation.g}, a.columns, sizeof(T)), context.stream);
  });
}

void SwigluBackwardCuda(const SwigluBackwardArgs& a, const CudaContext& context) {
  ByStorage(a.dh.stored(), [&]<typename T>() {
    const SwigluGradient<T> operation{As<T>(a.dg), As<T>(a.h), As<T>(a.dh), a.columns};
    LaunchRows(operation, a.rows, a.columns,
               Aligned({operation.dg, operation.h, operation.dh}, a.columns, sizeof(T)),
               context.stream);
  });
}

void BiasTanhCuda(const BiasTanhArgs& a, const CudaContext& context) {
  ByStorage(a.y.stored(), [&]<typename T>() {
    const ApplyTanh<T> operation{As<T>(a.y), As<T>(a.bias), a.columns};
    LaunchRows(operation, a.rows, a.columns,
               Aligned({operation.y, operation.bias}, a.columns, sizeof(T)), context.stream);
  });
}

void TanhBackwardCuda(const TanhBackwardArgs& a, const CudaContext& context) {
  ByStorage(a.dx.stored(), [&]<typename T>() {
    const TanhGradient<T> operation{As<T>(a.dy), As<T>(a.y), As<T>(a.dx)};
    LaunchFlat(operation, a.count, Aligned({operation.dy, operation.y, operation.dx}, 0, 1),
               context.stream);
  });
}

}  // namespace tercio::kernels::cuda
