// Numbers of checkpoint files as fp32 and back: F32, F16, BF16 and F64. Reading is exact, and a
// number that was read is written with the bits it came from, NaNs included; other numbers are
// rounded to the nearest, ties to even. Only F64 is wider than fp32: it is rounded when it is read,
// and written exactly. Bytes are little-endian and need no alignment. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace tercio::checkpoint {

enum class FloatFormat { kF32, kF16, kBF16, kF64 };

// The format that safetensors calls `dtype`; nullopt for names other than these.
std::optional<FloatFormat> FloatFormatOf(std::string_view dtype);
std::string_view SafetensorsName(FloatFormat format);
int64_t BytesOf(FloatFormat format);
// The least magnitude that narrows to infinity.
float BoundOf(FloatFormat format);

void WidenFloats(FloatFormat format, const char* bytes, int64_t count, float* out);
void NarrowFloats(FloatFormat format, const float* values, int64_t count, char* out);

}  // namespace tercio::checkpoint
