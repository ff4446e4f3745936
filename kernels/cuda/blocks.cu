// Numbers of few bits in blocks that share a scale (kernels/block_format.h): rounding, packing and
// unpacking, with the CPU's bits.
//
// Launch geometry: a warp has a block of 256 elements, of which a lane moves 8 neighbours. A lane's
// codes are whole words, and lie at multiples of 4 bytes, as those of every block do. Bytes for
// each element, with B = 2 or 4, and Q = 1 or 1/2 for a code: 4 + B, 4 + Q, Q + B. Bound by memory.
#include <initializer_list>

#include "kernels/cuda/parts.h"
#include "kernels/cuda/primitives/groups.cuh"
#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/primitives/reduce.cuh"
#include "kernels/ops.h"

namespace tercio::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocksOfLaunch = kThreads / kWarpThreads;  // blocks of elements in a thread block
constexpr int kWidth = 8;                                 // width of a group
static_assert(kWarpThreads * kWidth == kBlockElements);

template <BlockFormat kFormat>
constexpr int kCodeBits = kFormat == BlockFormat::kInt8 ? 8 : 4;
template <BlockFormat kFormat>
constexpr int kWords = kWidth* kCodeBits<kFormat> / 32;

// The group of this thread.
struct Place {
  int64_t block;  // the same for all lanes
  int64_t first;  // element
  int64_t count;  // elements from there on, also negative
};
__device__ __forceinline__ Place PlaceOf(int64_t count) {
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t block = static_cast<int64_t>(blockIdx.x) * kBlocksOfLaunch + thread / kWarpThreads;
  const int64_t first = block * kBlockElements + thread % kWarpThreads * kWidth;
  return {block, first, count - first};
}

// The scale of the warp's block, in every lane.
template <BlockFormat kFormat>
__device__ __forceinline__ float ScaleOf(const float (&values)[kWidth]) {
  float largest = 0;
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    const float magnitude = fabsf(values[j]);
    // Maxima lose NaN, while infinity has the same effect.
    const bool finite = magnitude <= 3.402823466e38f;
    largest = fmaxf(largest, finite ? magnitude : __uint_as_float(0x7f800000u));
  }
  return BlockScale(kFormat, WarpMax(largest));
}

// 0 for a block without a positive scale, whose codes are 0.
__device__ __forceinline__ float InverseOf(float scale) {
  return scale > 0 ? __fdiv_rn(1.0f, scale) : 0.0f;
}
__device__ __forceinline__ int CodeOf(float x, float inverse) {
  // The comparison keeps elements that are not finite out of the conversion.
  return inverse > 0 ? __float2int_rn(__fmul_rn(x, inverse)) : 0;
}

template <bool kAligned, BlockFormat kFormat, typename T>
__global__ void __launch_bounds__(kThreads)
    RoundBlocksKernel(T* to, const float* from, int64_t count) {
  const Place place = PlaceOf(count);
  float values[kWidth];
  LoadGroup<kAligned>(from + place.first, place.count, values);
  const float scale = ScaleOf<kFormat>(values);
  const float inverse = InverseOf(scale);
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    values[j] = __fmul_rn(static_cast<float>(CodeOf(values[j], inverse)), scale);
  }
  StoreGroup<kAligned>(values, place.count, to + place.first);
}

template <bool kAligned, BlockFormat kFormat>
__global__ void __launch_bounds__(kThreads)
    PackBlocksKernel(float* scales, std::byte* all_codes, const float* from, int64_t count) {
  constexpr int kBits = kCodeBits<kFormat>;
  const Place place = PlaceOf(count);
  float values[kWidth];
  LoadGroup<kAligned>(from + place.first, place.count, values);
  const float scale = ScaleOf<kFormat>(values);
  const float inverse = InverseOf(scale);
  uint32_t words[kWords<kFormat>] = {};
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    const uint32_t code = static_cast<uint32_t>(CodeOf(values[j], inverse)) & ((1u << kBits) - 1);
    words[j * kBits / 32] |= code << (j * kBits % 32);
  }
  if (place.count <= 0) return;
  if (threadIdx.x % kWarpThreads == 0) scales[place.block] = scale;
  std::byte* codes = all_codes + place.first * kBits / 8;
  if (place.count >= kWidth) {
#pragma unroll
    for (int i = 0; i < kWords<kFormat>; ++i) reinterpret_cast<uint32_t*>(codes)[i] = words[i];
    return;
  }
#pragma unroll
  for (int i = 0; i < kWords<kFormat> * 4; ++i) {
    if (i < CodeBytes(kFormat, place.count)) {
      codes[i] = static_cast<std::byte>(words[i / 4] >> (i % 4 * 8));
    }
  }
}

template <bool kAligned, BlockFormat kFormat, typename T>
__global__ void __launch_bounds__(kThreads)
    UnpackBlocksKernel(T* to, const float* scales, const std::byte* all_codes, int64_t count) {
  constexpr int kBits = kCodeBits<kFormat>;
  const Place place = PlaceOf(count);
  if (place.count <= 0) return;
  const float scale = scales[place.block];
  const std::byte* codes = all_codes + place.first * kBits / 8;
  uint32_t words[kWords<kFormat>] = {};
  if (place.count >= kWidth) {
#pragma unroll
    for (int i = 0; i < kWords<kFormat>; ++i) {
      words[i] = reinterpret_cast<const uint32_t*>(codes)[i];
    }
  } else {
#pragma unroll
    for (int i = 0; i < kWords<kFormat> * 4; ++i) {
      if (i < CodeBytes(kFormat, place.count)) {
        words[i / 4] |= static_cast<uint32_t>(codes[i]) << (i % 4 * 8);
      }
    }
  }
  float values[kWidth];
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    // A code's highest bit becomes the word's, and is its sign.
    const uint32_t raised = words[j * kBits / 32] << (32 - kBits - j * kBits % 32);
    values[j] = __fmul_rn(static_cast<float>(static_cast<int>(raised) >> (32 - kBits)), scale);
  }
  StoreGroup<kAligned>(values, place.count, to + place.first);
}

LaunchShape ShapeFor(int64_t count) {
  const int64_t blocks = (BlocksOf(count) + kBlocksOfLaunch - 1) / kBlocksOfLaunch;
  return {dim3(static_cast<unsigned>(blocks)), kThreads};
}

// Calls function.operator()<kFormat>().
template <typename Function>
void ByFormat(BlockFormat format, const Function& function) {
  // What has no block format is a copy, which is another operation.
  TERCIO_CHECK(format != BlockFormat::kNone);
  if (format == BlockFormat::kInt8) return function.template operator()<BlockFormat::kInt8>();
  function.template operator()<BlockFormat::kInt4>();
}

// Calls function.operator()<kAligned>(). Blocks of every type are whole groups of 16 bytes, so only
// the starts of runs count.
template <typename Function>
void ByAlignment(std::initializer_list<const void*> starts, const Function& function) {
  if (Aligned(starts, 0, 1)) return function.template operator()<true>();
  function.template operator()<false>();
}

}  // namespace

void RoundBlocksCuda(Values to, const float* from, int64_t count, BlockFormat format,
                     const CudaContext& context) {
  if (count == 0) return;
  ByStorage(to.stored(), [&]<typename T>() {
    ByFormat(format, [&]<BlockFormat kFormat>() {
      ByAlignment({to.data(), from}, [&]<bool kAligned>() {
        Launch(RoundBlocksKernel<kAligned, kFormat, T>, ShapeFor(count), context.stream, As<T>(to),
               from, count);
      });
    });
  });
}

void PackBlocksCuda(std::byte* packed, const float* from, int64_t count, BlockFormat format,
                    const CudaContext& context) {
  if (count == 0) return;
  auto* scales = reinterpret_cast<float*>(packed);
  std::byte* codes = packed + BlocksOf(count) * 4;
  ByFormat(format, [&]<BlockFormat kFormat>() {
    ByAlignment({from}, [&]<bool kAligned>() {
      Launch(PackBlocksKernel<kAligned, kFormat>, ShapeFor(count), context.stream, scales, codes,
             from, count);
    });
  });
}

void UnpackBlocksCuda(Values to, const std::byte* packed, int64_t count, BlockFormat format,
                      const CudaContext& context) {
  if (count == 0) return;
  const auto* scales = reinterpret_cast<const float*>(packed);
  const std::byte* codes = packed + BlocksOf(count) * 4;
  ByStorage(to.stored(), [&]<typename T>() {
    ByFormat(format, [&]<BlockFormat kFormat>() {
      ByAlignment({to.data()}, [&]<bool kAligned>() {
        Launch(UnpackBlocksKernel<kAligned, kFormat, T>, ShapeFor(count), context.stream, As<T>(to),
               scales, codes, count);
      });
    });
  });
}

}  // namespace tercio::kernels::cuda
