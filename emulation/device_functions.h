// CUDA's extensions of C++ for kernels, so that a .cu file compiles as plain C++: the words of the
// language, the indices, barriers, warp operations and intrinsics, each by its CUDA name. Only
// those that Tercio uses: anything else does not compile. Functions that wait (barriers, warp
// operations) are checked, see grid.h.
//
// Variables with __shared__ keep their values from block to block, where a GPU promises nothing;
// dynamic shared memory is filled with NaN before each block, and is to be preferred for that
// reason.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "emulation/grid.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__ static thread_local
#define __align__(bytes) __attribute__((aligned(bytes)))

inline constexpr int warpSize = ::tercio::emulation::kWarpLanes;

inline void __syncthreads(::tercio::emulation::Place where = ::tercio::emulation::Place::Here()) {
  ::tercio::emulation::Barrier(::tercio::emulation::BarrierKind::kPlain, false, where);
}
inline int __syncthreads_or(int predicate,
                            ::tercio::emulation::Place where = ::tercio::emulation::Place::Here()) {
  return ::tercio::emulation::Barrier(::tercio::emulation::BarrierKind::kOr, predicate != 0, where);
}
inline int __syncthreads_and(
    int predicate, ::tercio::emulation::Place where = ::tercio::emulation::Place::Here()) {
  return ::tercio::emulation::Barrier(::tercio::emulation::BarrierKind::kAnd, predicate != 0,
                                      where);
}
inline int __syncthreads_count(
    int predicate, ::tercio::emulation::Place where = ::tercio::emulation::Place::Here()) {
  return ::tercio::emulation::Barrier(::tercio::emulation::BarrierKind::kCount, predicate != 0,
                                      where);
}

inline void __syncwarp(unsigned int mask = 0xffffffffu,
                       ::tercio::emulation::Place where = ::tercio::emulation::Place::Here()) {
  ::tercio::emulation::WarpExchange(::tercio::emulation::WarpOperation::kSync, mask, 0, 0,
                                    ::tercio::emulation::kWarpLanes, where);
}

namespace tercio::emulation {

template <typename T>
concept Shuffled = std::is_same_v<T, int> || std::is_same_v<T, unsigned int> ||
    std::is_same_v<T, long> || std::is_same_v<T, unsigned long> || std::is_same_v<T, long long> ||
    std::is_same_v<T, unsigned long long> || std::is_same_v<T, float> || std::is_same_v<T, double>;

template <Shuffled T>
T Shuffle(WarpOperation operation, uint32_t mask, T value, int operand, int width, Place where) {
  using Bits = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
  const uint64_t result =
      WarpExchange(operation, mask, std::bit_cast<Bits>(value), operand, width, where);
  return std::bit_cast<T>(static_cast<Bits>(result));
}

}  // namespace tercio::emulation

template <::tercio::emulation::Shuffled T>
T __shfl_sync(unsigned int mask, T value, int lane, int width = warpSize,
              ::tercio::emulation::Place where = ::tercio::emulation::Place::Here()) {
  return ::tercio::emulation::Shuffle(::tercio::emulation::WarpOperation::kShuffle, mask, value,
                                      lane, width, where);
}
template <::tercio::emulation::Shuffled T>
T __shfl_up_sync(unsigned int mask, T value, unsigned int distance, int width = warpSize,
                 ::tercio::emulation::Place where = ::tercio::emulation::Place::Here()) {
  return ::tercio::emulation::Shuffle(::tercio::emulation::WarpOperation::kShuffleUp, mask, value,
                                      static_cast<int>(distance), width, where);
}
template <::tercio::emulation::Shuffled T>
T __shfl_down_sync(unsigned int mask, T value, unsigned int distance, int width = warpSize,
                   ::tercio::emulation::Place where = ::tercio::emulation::Place::Here()) {
  return ::tercio::emulation::Shuffle(::tercio::emulation::WarpOperation::kShuffleDown, mask, value,
                                      static_cast<int>(distance), width, where);
}
template <::tercio::emulation::Shuffled T>
T __shfl_xor_sync(unsigned int mask, T value, int bits, int width = warpSize,
                  ::tercio::emulation::Place where = ::tercio::emulation::Place::Here()) {
  return ::tercio::emulation::Shuffle(::tercio::emulation::WarpOperation::kShuffleXor, mask, value,
                                      bits, width, where);
}

namespace tercio::emulation {

// What five shuffles by XOR and as many additions, or maxima, make of a float of each lane: in one
// meeting of the lanes instead of five. Not part of CUDA; kernels call it through
// kernels/cuda/primitives/reduce.cuh only.
inline float WarpReduce(WarpOperation operation, float value, Place where = Place::Here()) {
  return Shuffle(operation, 0xffffffffu, value, 0, kWarpLanes, where);
}

}  // namespace tercio::emulation

inline unsigned int __ballot_sync(
    unsigned int mask, int predicate,
    ::tercio::emulation::Place where = ::tercio::emulation::Place::Here()) {
  return static_cast<unsigned int>(
      ::tercio::emulation::WarpExchange(::tercio::emulation::WarpOperation::kBallot, mask,
                                        predicate != 0 ? 1 : 0, 0, warpSize, where));
}
inline int __any_sync(unsigned int mask, int predicate,
                      ::tercio::emulation::Place where = ::tercio::emulation::Place::Here()) {
  return __ballot_sync(mask, predicate, where) != 0 ? 1 : 0;
}
inline int __all_sync(unsigned int mask, int predicate,
                      ::tercio::emulation::Place where = ::tercio::emulation::Place::Here()) {
  return __ballot_sync(mask, predicate, where) == mask ? 1 : 0;
}

// The threads of a device run one at a time.
template <typename T>
requires std::is_same_v<T, int> || std::is_same_v<T, unsigned int> || std::is_same_v<T, float> T
atomicAdd(T* address, T value) {
  const T before = *address;
  *address += value;
  return before;
}
inline unsigned int atomicMax(unsigned int* address, unsigned int value) {
  const unsigned int before = *address;
  if (value > before) *address = value;
  return before;
}
inline void __threadfence() {}

template <typename T>
T __ldg(const T* address) {
  return *address;
}

// The library's functions are calls, which take longer than a kernel's other work.
#define fmaxf(x, y) ::tercio::emulation::LargerOf(x, y)

// <math.h> declares some of these names for itself, with C's linkage.
extern "C" {
inline float __expf(float x) noexcept { return std::exp(x); }
inline float __logf(float x) noexcept { return std::log(x); }
}
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fmaf_rn(float x, float y, float z) { return std::fma(x, y, z); }

inline unsigned int __float_as_uint(float x) { return std::bit_cast<unsigned int>(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline float __uint_as_float(unsigned int x) { return std::bit_cast<float>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }

// The nearest integer, of numbers that an int can hold: a GPU converts all others as well.
inline int __float2int_rn(float x) { return static_cast<int>(std::nearbyint(x)); }

inline unsigned int __umulhi(unsigned int x, unsigned int y) {
  return static_cast<unsigned int>(uint64_t{x} * y >> 32);
}
inline int __popc(unsigned int x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned int>(x)); }
inline int __ffs(int x) { return __builtin_ffs(x); }
