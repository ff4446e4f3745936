// Values of a job's precision in memory of a device.
//
// What a value may be and how it is stored are two things: the CPU keeps bf16 and fp16 values in
// floats, which it rounds, so that its arithmetic defines to the bit what a backend with 16-bit
// buffers should hold; CUDA stores them in 16 bits. Whoever writes values rounds them to format(),
// last. Owns nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "common/check.h"

namespace tercio::kernels {

// The set of numbers that a value is one of. kFloat32: no rounding.
enum class Format { kFloat32, kBfloat16, kFloat16 };

constexpr int64_t BytesOf(Format format) { return format == Format::kFloat32 ? 4 : 2; }

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
  // What may be written may be read.
  template <typename Other>
  requires(std::is_const_v<Byte> && !std::is_const_v<Other>)
      BasicValues(BasicValues<Other> other)  // NOLINT(google-explicit-constructor)
      : data_(other.data()), format_(other.format()), stored_(other.stored()) {}

  Format format() const { return format_; }
  Format stored() const { return stored_; }
  Byte* data() const { return data_; }
  int64_t BytesFor(int64_t count) const { return count * BytesOf(stored_); }

  // Where they are stored as floats. Null stays null.
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
