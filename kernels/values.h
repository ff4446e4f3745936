// Values of a job's precision in memory of a device.
//
// The set of possible values and their storage are independent: the CPU keeps bf16 and fp16 values
// in floats, which it rounds, so that its arithmetic defines to the bit what a backend with 16-bit
// buffers should hold; CUDA stores them in 16 bits. Writers round values to format(), last. Owns
// nothing.
//
// The two formats of 8 bits (Micikevicius et al. 2022, "FP8 formats for deep learning") are those
// of factors of scaled products alone (ops.h). E4M3 has 4 bits of exponent, 3 behind the point, no
// infinity, and 448 for its largest number; E5M2 has 5 and 2, and 57,344.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "common/check.h"

namespace tercio::kernels {

// The set of numbers that a value is one of. kFloat32: no rounding.
enum class Format { kFloat32, kBfloat16, kFloat16, kE4m3, kE5m2 };

constexpr bool IsEightBits(Format format) {
  return format == Format::kE4m3 || format == Format::kE5m2;
}
constexpr int64_t BytesOf(Format format) {
  return format == Format::kFloat32 ? 4 : IsEightBits(format) ? 1 : 2;
}

// The factor of values before they are rounded to 8 bits: a power of two, so that it adds no
// rounding of its own, and 1 / multiplier is exact.
struct Scale {
  float multiplier = 1;
  float inverse = 1;
};

// The largest factor, at most 2^100, that leaves a value of magnitude `largest` within a format of
// 8 bits; 1 if that is 0 or not finite. The largest numbers of both are 1.75 * 2^8 and 1.75 * 2^15.
// For hosts and devices.
constexpr Scale ScaleFor(Format format, float largest) {
  const uint32_t bits = std::bit_cast<uint32_t>(largest) & 0x7fffffffu;
  const int exponent = static_cast<int>(bits >> 23) - 127;
  if (bits == 0 || exponent == 128) return {};
  const int above = (bits & 0x7fffffu) > 0x600000u ? 1 : 0;  // more than 1.75 * 2^exponent
  const int wanted = (format == Format::kE4m3 ? 8 : 15) - exponent - above;
  const int power = wanted > 100 ? 100 : wanted;
  return {std::bit_cast<float>(static_cast<uint32_t>(power + 127) << 23),
          std::bit_cast<float>(static_cast<uint32_t>(127 - power) << 23)};
}

// Byte: std::byte, or const std::byte for values that are only read.
template <typename Byte>
class BasicValues {
 public:
  using Float = std::conditional_t<std::is_const_v<Byte>, const float, float>;

  constexpr BasicValues() = default;
  constexpr BasicValues(std::nullptr_t) {}  // NOLINT(google-explicit-constructor): as a pointer
  // Floats, of which every one is a number of `format`.
  BasicValues(Float* data, Format format = Format::kFloat32)  // NOLINT(google-explicit-constructor)
      : data_(reinterpret_cast<Byte*>(data)), format_(format) {}
  BasicValues(Byte* data, Format format, Format stored)
      : data_(data), format_(format), stored_(stored) {
    TERCIO_CHECK(stored == format || stored == Format::kFloat32);
  }
  // Writable values convert to read-only ones.
  template <typename Other>
  requires(std::is_const_v<Byte> && !std::is_const_v<Other>)
      BasicValues(BasicValues<Other> other)  // NOLINT(google-explicit-constructor)
      : data_(other.data()), format_(other.format()), stored_(other.stored()) {}

  Format format() const { return format_; }
  Format stored() const { return stored_; }
  Byte* data() const { return data_; }
  int64_t BytesFor(int64_t count) const { return count * BytesOf(stored_); }

  // The values, which are stored as floats. Null stays null.
  Float* floats() const {
    TERCIO_CHECK(stored_ == Format::kFloat32);
    return reinterpret_cast<Float*>(data_);
  }
  operator Float*() const { return floats(); }  // NOLINT(google-explicit-constructor)

  // From the count-th on.
  friend BasicValues operator+(BasicValues values, int64_t count) {
    values.data_ += values.BytesFor(count);
    return values;
  }
  BasicValues& operator+=(int64_t count) { return *this = *this + count; }

  friend bool operator==(BasicValues values, std::nullptr_t) { return values.data_ == nullptr; }
  friend bool operator==(BasicValues a, BasicValues b) { return a.data_ == b.data_; }

 private:
  Byte* data_ = nullptr;
  Format format_ = Format::kFloat32;
  Format stored_ = Format::kFloat32;
};

using Values = BasicValues<std::byte>;
using ConstValues = BasicValues<const std::byte>;

}  // namespace tercio::kernels
