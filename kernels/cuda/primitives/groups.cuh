// Groups: neighbouring elements of a row that one thread moves, 16 bytes of them at a time if the
// row is aligned, else one by one, and computes with as floats. The assignment of elements to
// threads does not depend on alignment, so neither do the bits of the results.
#pragma once

#include <initializer_list>

#include "common/check.h"
#include "kernels/cuda/primitives/vector.cuh"
#include "kernels/values.h"

namespace tercio::kernels::cuda {

// Elements of a group: 16 bytes.
template <typename T>
inline constexpr int kGroup = static_cast<int>(16 / sizeof(T));

template <typename T>
inline constexpr Format kFormatOf = Format::kFloat32;
template <>
inline constexpr Format kFormatOf<__nv_bfloat16> = Format::kBfloat16;
template <>
inline constexpr Format kFormatOf<__half> = Format::kFloat16;

// Calls function.operator()<T>() with the type that values of `stored` have in memory.
template <typename Function>
void ByStorage(Format stored, const Function& function) {
  switch (stored) {
    case Format::kFloat32:
      return function.template operator()<float>();
    case Format::kBfloat16:
      return function.template operator()<__nv_bfloat16>();
    case Format::kFloat16:
      return function.template operator()<__half>();
    case Format::kE4m3:
    case Format::kE5m2:
      TERCIO_CHECK(false);  // factors of scaled products, and nothing else
  }
}

// The values' elements. On CUDA they are stored in their format. Null stays null.
template <typename T>
T* As(Values values) {
  if (values == nullptr) return nullptr;
  TERCIO_CHECK(values.stored() == kFormatOf<T> && values.format() == kFormatOf<T>);
  return reinterpret_cast<T*>(values.data());
}
template <typename T>
const T* As(ConstValues values) {
  if (values == nullptr) return nullptr;
  TERCIO_CHECK(values.stored() == kFormatOf<T> && values.format() == kFormatOf<T>);
  return reinterpret_cast<const T*>(values.data());
}

// Whether rows of `stride` elements of `element_bytes`, starting at these places, all begin at
// multiples of 16 bytes.
inline bool Aligned(std::initializer_list<const void*> starts, int64_t stride,
                    size_t element_bytes) {
  uintptr_t bits = static_cast<uintptr_t>(stride) * element_bytes;
  for (const void* start : starts) bits |= reinterpret_cast<uintptr_t>(start);
  return bits % 16 == 0;
}

// The first `count` (or all) of kCount elements as they are stored, zeros after them. For groups
// that wait for others: 16-bit elements take half of the registers that floats would.
template <bool kAligned, int kCount, typename T>
__device__ __forceinline__ void LoadElements(const T* from, int64_t count,
                                             Elements<T, kCount>& elements) {
  if (kAligned && count >= kCount) return elements.Load(from);
#pragma unroll
  for (int j = 0; j < kCount; ++j) elements.values[j] = j < count ? from[j] : FromFloat<T>(0);
}

template <int kCount, typename T>
__device__ __forceinline__ void ToFloats(const Elements<T, kCount>& elements,
                                         float (&values)[kCount]) {
#pragma unroll
  for (int j = 0; j < kCount; ++j) values[j] = ToFloat(elements.values[j]);
}

// The same as floats.
template <bool kAligned, int kCount, typename T>
__device__ __forceinline__ void LoadGroup(const T* from, int64_t count, float (&values)[kCount]) {
  if (kAligned && count >= kCount) {
    Elements<T, kCount> elements;
    elements.Load(from);
    return ToFloats(elements, values);
  }
#pragma unroll
  for (int j = 0; j < kCount; ++j) values[j] = j < count ? ToFloat(from[j]) : 0.0f;
}

// Rounds and writes the first `count` (or all) of them.
template <bool kAligned, int kCount, typename T>
__device__ __forceinline__ void StoreGroup(const float (&values)[kCount], int64_t count, T* to) {
  if (kAligned && count >= kCount) {
    Elements<T, kCount> elements;
#pragma unroll
    for (int j = 0; j < kCount; ++j) elements.values[j] = FromFloat<T>(values[j]);
    elements.Store(to);
    return;
  }
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    if (j < count) to[j] = FromFloat<T>(values[j]);
  }
}

// The value rounded as a buffer of T would hold it.
template <typename T, int kCount>
__device__ __forceinline__ void RoundGroup(float (&values)[kCount]) {
#pragma unroll
  for (int j = 0; j < kCount; ++j) values[j] = ToFloat(FromFloat<T>(values[j]));
}

}  // namespace tercio::kernels::cuda
