// Numbers of checkpoint files as fp32 and back: F32, F16 and BF16. Widening is exact, and a number
// that was widened narrows to the bits it came from, NaNs included; other numbers are rounded to
// the nearest, ties to even. Bytes are little-endian and need no alignment. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace tercio::checkpoint {

enum class FloatFormat { kF32, kF16, kBF16 };

// The format that safetensors calls `dtype`; nullopt for names other than these three.
std::optional<FloatFormat> FloatFormatOf(std::string_view dtype);
std::string_view SafetensorsName(FloatFormat format);
int64_t BytesOf(FloatFormat format);
// The least magnitude that narrows to infinity.
float BoundOf(FloatFormat format);

void WidenFloats(FloatFormat format, const char* bytes, int64_t count, float* out);
void NarrowFloats(FloatFormat format, const float* values, int64_t count, char* out);

}  // namespace tercio::checkpoint
