// Numbers of few bits that share a scale, block by block: what a job's weights and gradients are
// rounded to, and travel as between ranks (training.weight_format and gradient_format; Wang et al.
// 2023, "ZeRO++", section 3).
//
// A block is kBlockElements consecutive elements, counted from the first one, and shorter at the
// end. With q = 127 (int8) or 7 (int4), a block x is represented by a scale s, max |x| / q rounded
// to the nearest float, then down to one whose fraction has 15 bits, and by a code for each
// element, x * (1 / s), in which both the quotient and the product are rounded to floats, rounded
// to the nearest integer, ties to even; it is within [-q, q]. An element becomes code * s, which no
// rounding changes. So the format is a projection: what has been rounded to it is represented by
// the same codes and scales again, and blocks can be packed, sent and unpacked without loss. A
// scale that was rounded up could make q * s infinite.
//
// A block whose scale would be below 2^-100 becomes zeros: its scale and its codes are 0. A block
// with an element that is not finite becomes NaNs: its scale is NaN, and its codes are 0.
//
// A packed run of elements: the scales of its blocks (float), then the codes in order: a signed
// byte each (int8), or two in a byte (int4), the first in the lower four bits, two's complement.
// The upper four bits behind an odd number of codes are 0.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

namespace tercio::kernels {

inline constexpr int64_t kBlockElements = 256;

// kNone: not rounded, and packed as floats.
enum class BlockFormat { kNone, kInt8, kInt4 };

constexpr int LargestCode(BlockFormat format) { return format == BlockFormat::kInt8 ? 127 : 7; }

constexpr int64_t BlocksOf(int64_t elements) {
  return (elements + kBlockElements - 1) / kBlockElements;
}

// Bytes of the codes of consecutive elements that begin a block.
constexpr int64_t CodeBytes(BlockFormat format, int64_t elements) {
  return format == BlockFormat::kInt8 ? elements : (elements + 1) / 2;
}

// Bytes of a packed run. A run that is cut at multiples of kBlockElements has the blocks of the
// whole.
constexpr int64_t PackedBytes(BlockFormat format, int64_t elements) {
  if (format == BlockFormat::kNone) return elements * 4;
  return BlocksOf(elements) * 4 + CodeBytes(format, elements);
}

// The scale of a block whose largest magnitude is `largest`, which is infinite or NaN where an
// element is. For hosts and devices: both divide as IEEE 754 says.
constexpr float BlockScale(BlockFormat format, float largest) {
  if (!(largest <= std::numeric_limits<float>::max())) {
    return std::numeric_limits<float>::quiet_NaN();
  }
  const float quotient = largest / static_cast<float>(LargestCode(format));
  const auto scale = std::bit_cast<float>(std::bit_cast<uint32_t>(quotient) & 0xffffff00u);
  return scale < 0x1p-100f ? 0.0f : scale;
}

}  // namespace tercio::kernels
