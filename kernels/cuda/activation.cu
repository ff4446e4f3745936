// Activations, gated ones, tanh, and their gradients.
//
// Launch geometry: primitives/rows.cuh; a lane has a group of 16 bytes.
// Bytes for each element of the result, B = 2 or 4: activation 2 B, its gradient 3 B; gated 3 B,
// its gradient 5 B; tanh 2 B, its gradient 3 B. Bound by memory.
#include <type_traits>

#include "kernels/cuda/parts.h"
#include "kernels/cuda/primitives/activations.cuh"
#include "kernels/cuda/primitives/groups.cuh"
#include "kernels/cuda/primitives/rows.cuh"

namespace tercio::kernels::cuda {
namespace {

template <typename T, typename Function>
struct ApplyActivation {
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
    for (int j = 0; j < kWidth; ++j) x[j] = Function::Value(x[j]);
    StoreGroup<kAligned>(x, count, g + at);
  }
};

template <typename T, typename Function>
struct ActivationGradient {
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
    for (int j = 0; j < kWidth; ++j) g[j] *= Function::Slope(x[j]);
    StoreGroup<kAligned>(g, count, dh + at);
  }
};

template <typename T, typename Function>
struct ApplyGated {
  static constexpr int kWidth = kGroup<T>;
  template <bool>
  static constexpr int kLeastBlocks = std::is_same_v<Function, TanhGelu> ? 5 : 0;
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
    for (int j = 0; j < kWidth; ++j) x[j] = Function::Value(x[j]) * up[j];
    StoreGroup<kAligned>(x, count, g + row * columns + column);
  }
};

template <typename T, typename Function>
struct GatedGradient {
  static constexpr int kWidth = kGroup<T>;
  template <bool>
  static constexpr int kLeastBlocks = std::is_same_v<Function, ExactGelu> ? 2
                                      : std::is_same_v<Function, Relu>    ? 4
                                                                          : 0;
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
      const float value = Function::Value(x[j]);
      x[j] = g[j] * up[j] * Function::Slope(x[j]);
      up[j] = g[j] * value;
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

}  // namespace

void ActivateCuda(const ActivationArgs& a, const CudaContext& context) {
  ByStorage(a.g.stored(), [&]<typename T>() {
    ByFunction(a.function, [&]<typename Function>() {
      const ApplyActivation<T, Function> operation{As<T>(a.h), As<T>(a.g), a.columns};
      LaunchRows(operation, a.rows, a.columns,
                 Aligned({operation.h, operation.g}, a.columns, sizeof(T)), context.stream);
    });
  });
}

void ActivateBackwardCuda(const ActivationBackwardArgs& a, const CudaContext& context) {
  ByStorage(a.dh.stored(), [&]<typename T>() {
    ByFunction(a.function, [&]<typename Function>() {
      const ActivationGradient<T, Function> operation{As<T>(a.dg), As<T>(a.h), As<T>(a.dh),
                                                      a.columns};
      LaunchRows(operation, a.rows, a.columns,
                 Aligned({operation.dg, operation.h, operation.dh}, a.columns, sizeof(T)),
                 context.stream);
    });
  });
}

void GatedCuda(const GatedArgs& a, const CudaContext& context) {
  ByStorage(a.g.stored(), [&]<typename T>() {
    ByFunction(a.function, [&]<typename Function>() {
      const ApplyGated<T, Function> operation{As<T>(a.h), As<T>(a.g), a.columns};
      LaunchRows(operation, a.rows, a.columns,
                 Aligned({operation.h, operation.g}, a.columns, sizeof(T)), context.stream);
    });
  });
}

void GatedBackwardCuda(const GatedBackwardArgs& a, const CudaContext& context) {
  ByStorage(a.dh.stored(), [&]<typename T>() {
    ByFunction(a.function, [&]<typename Function>() {
      const GatedGradient<T, Function> operation{As<T>(a.dg), As<T>(a.h), As<T>(a.dh), a.columns};
      LaunchRows(operation, a.rows, a.columns,
                 Aligned({operation.dg, operation.h, operation.dh}, a.columns, sizeof(T)),
                 context.stream);
    });
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
