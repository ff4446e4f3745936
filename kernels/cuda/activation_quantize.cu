// Activations, gated ones and the gradient of the former, whose results are rounded to 8 bits in
// the same pass.
//
// Launch geometry: primitives/eight_bits.cuh; a thread has 16 neighbouring elements of the result.
// Bytes for each of them: 5 forward (gated 7), 8 for the gradient, which is written in 8 bits as
// it is and transposed. Bound by memory.
#include "kernels/cuda/parts.h"
#include "kernels/cuda/primitives/activations.cuh"
#include "kernels/cuda/primitives/eight_bits.cuh"

namespace tercio::kernels::cuda {
namespace {

// Jobs with factors of 8 bits have this format.
using T = __nv_bfloat16;

// Writes the values and makes them those that were written.
template <bool kAligned>
__device__ __forceinline__ void RoundAndStore(float (&values)[kTileWidth], int64_t count, T* to) {
  RoundGroup<T>(values);
  StoreGroup<kAligned>(values, count, to);
}

template <typename Function>
struct ActivationSource {
  const T* h;
  T* g;
  int64_t columns;

  template <bool kAligned>
  __device__ __forceinline__ void Make(int64_t row, int64_t column, int64_t count,
                                       float (&values)[kTileWidth]) const {
    const int64_t at = row * columns + column;
    LoadGroup<kAligned>(h + at, count, values);
#pragma unroll
    for (int j = 0; j < kTileWidth; ++j) values[j] = Function::Value(values[j]);
    RoundAndStore<kAligned>(values, count, g + at);
  }
};

template <typename Function>
struct GradientSource {
  const T* dg;
  const T* h;
  T* dh;
  int64_t columns;

  template <bool kAligned>
  __device__ __forceinline__ void Make(int64_t row, int64_t column, int64_t count,
                                       float (&values)[kTileWidth]) const {
    const int64_t at = row * columns + column;
    float x[kTileWidth];
    LoadGroup<kAligned>(dg + at, count, values);
    LoadGroup<kAligned>(h + at, count, x);
#pragma unroll
    for (int j = 0; j < kTileWidth; ++j) values[j] *= Function::Slope(x[j]);
    RoundAndStore<kAligned>(values, count, dh + at);
  }
};

template <typename Function>
struct GatedSource {
  const T* h;
  T* g;
  int64_t columns;

  template <bool kAligned>
  __device__ __forceinline__ void Make(int64_t row, int64_t column, int64_t count,
                                       float (&values)[kTileWidth]) const {
    const T* gate = h + row * 2 * columns + column;
    float up[kTileWidth];
    LoadGroup<kAligned>(gate, count, values);
    LoadGroup<kAligned>(gate + columns, count, up);
#pragma unroll
    for (int j = 0; j < kTileWidth; ++j) values[j] = Function::Value(values[j]) * up[j];
    RoundAndStore<kAligned>(values, count, g + row * columns + column);
  }
};

// Whether a kernel here does it: all values in bf16, and no element that has to be moved by itself.
template <typename... Each>
bool Fits(const QuantizeArgs& to, Format format, const Each&... values) {
  const auto fits = [&to](ConstValues value) {
    return value.stored() == Format::kBfloat16 && Aligned({value.data()}, to.columns, sizeof(T));
  };
  const ConstValues some = to.plain == nullptr ? to.transposed : to.plain;
  return to.rows > 0 && to.columns % kTileWidth == 0 && some.format() == format &&
         Aligned(OutputOf(to)) && (... && fits(values));
}

}  // namespace

bool ActivateQuantizeCuda(const ActivationArgs& a, const QuantizeArgs& to,
                          const CudaContext& context) {
  if (!Fits(to, Format::kE4m3, a.h, a.g)) return false;
  ByFunction(a.function, [&]<typename Function>() {
    const ActivationSource<Function> source{As<T>(a.h), As<T>(a.g), a.columns};
    LaunchQuantize<true, Format::kE4m3>(source, OutputOf(to), context.stream);
  });
  return true;
}

bool GatedQuantizeCuda(const GatedArgs& a, const QuantizeArgs& to, const CudaContext& context) {
  if (!Fits(to, Format::kE4m3, a.h, a.g)) return false;
  ByFunction(a.function, [&]<typename Function>() {
    const GatedSource<Function> source{As<T>(a.h), As<T>(a.g), a.columns};
    LaunchQuantize<true, Format::kE4m3>(source, OutputOf(to), context.stream);
  });
  return true;
}

bool ActivateBackwardQuantizeCuda(const ActivationBackwardArgs& a, const QuantizeArgs& to,
                                  const CudaContext& context) {
  if (!Fits(to, Format::kE5m2, a.dg, a.h, a.dh)) return false;
  ByFunction(a.function, [&]<typename Function>() {
    const GradientSource<Function> source{As<T>(a.dg), As<T>(a.h), As<T>(a.dh), a.columns};
    LaunchQuantize<true, Format::kE5m2>(source, OutputOf(to), context.stream);
  });
  return true;
}

}  // namespace tercio::kernels::cuda
