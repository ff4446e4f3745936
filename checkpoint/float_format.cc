#include "checkpoint/float_format.h"

#include <bit>
#include <cmath>
#include <cstring>

namespace tercio::checkpoint {
namespace {

constexpr uint32_t kSign = 0x80000000u;
constexpr uint32_t kInfinity = 0x7f800000u;

float WidenHalf(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t exponent = (half >> 10) & 31u;
  const uint32_t mantissa = half & 1023u;
  if (exponent == 31) return std::bit_cast<float>(sign | kInfinity | mantissa << 13);
  // The exponents are stored with 15 and with 127 added, hence the 112.
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;  // subnormal, exact
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
}

uint16_t NarrowToHalf(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits & kSign) >> 16);
  uint32_t magnitude = bits & ~kSign;
  if (magnitude > kInfinity) {
    // A NaN keeps the upper bits of its payload, so that one that was widened gets its bits back.
    // If none of them is set, a bit is, for an infinity would result otherwise.
    const uint32_t payload = (magnitude >> 13) & 1023u;
    return static_cast<uint16_t>(sign | 0x7c00u | (payload == 0 ? 0x200u : payload));
  }
  if (magnitude >= 0x47800000u) return static_cast<uint16_t>(sign | 0x7c00u);  // 65536 and above
  if (magnitude < 0x38800000u) {                                               // below 2^-14
    // Subnormal numbers are multiples of 2^-24, and the usual rounding mode breaks ties to even.
    const float scaled = std::bit_cast<float>(magnitude) * 0x1p24f;
    return static_cast<uint16_t>(sign | static_cast<uint32_t>(std::nearbyint(scaled)));
  }
  // Half of the dropped part, less one if the last bit that stays is 0, rounds ties to even. A
  // carry into the exponent is the right result, too.
  magnitude += 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | (magnitude - 0x38000000u) >> 13);
}

float WidenBrain(uint16_t brain) {
  return std::bit_cast<float>(static_cast<uint32_t>(brain) << 16);
}

uint16_t NarrowToBrain(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  // As with fp16, a NaN must neither lose its payload nor become an infinity.
  if ((bits & ~kSign) > kInfinity) {
    const uint32_t upper = bits >> 16;
    return static_cast<uint16_t>((upper & 0x7fu) == 0 ? upper | 0x40u : upper);
  }
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

}  // namespace

std::optional<FloatFormat> FloatFormatOf(std::string_view dtype) {
  if (dtype == "F32") return FloatFormat::kF32;
  if (dtype == "F16") return FloatFormat::kF16;
  if (dtype == "BF16") return FloatFormat::kBF16;
  if (dtype == "F64") return FloatFormat::kF64;
  return std::nullopt;
}

std::string_view SafetensorsName(FloatFormat format) {
  switch (format) {
    case FloatFormat::kF16:
      return "F16";
    case FloatFormat::kBF16:
      return "BF16";
    case FloatFormat::kF64:
      return "F64";
    case FloatFormat::kF32:
      break;
  }
  return "F32";
}

float BoundOf(FloatFormat format) {
  switch (format) {
    case FloatFormat::kF16:
      return 65520.0f;  // halfway between the largest number and the next power of two
    case FloatFormat::kBF16:
      return std::bit_cast<float>(0x7f7f8000u);
    case FloatFormat::kF32:
    case FloatFormat::kF64:
      break;
  }
  return std::bit_cast<float>(kInfinity);
}

int64_t BytesOf(FloatFormat format) {
  return format == FloatFormat::kF64 ? 8 : format == FloatFormat::kF32 ? 4 : 2;
}

void WidenFloats(FloatFormat format, const char* bytes, int64_t count, float* out) {
  // memcpy must not see the null pointer that an empty vector may have.
  if (count <= 0) return;
  if (format == FloatFormat::kF32) {
    std::memcpy(out, bytes, static_cast<size_t>(count) * sizeof(float));
    return;
  }
  if (format == FloatFormat::kF64) {
    for (int64_t i = 0; i < count; ++i) {
      double wide;
      std::memcpy(&wide, bytes + 8 * i, sizeof(wide));
      out[i] = static_cast<float>(wide);
    }
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    uint16_t narrow;
    // The bytes of a file have any alignment.
    std::memcpy(&narrow, bytes + 2 * i, sizeof(narrow));
    out[i] = format == FloatFormat::kF16 ? WidenHalf(narrow) : WidenBrain(narrow);
  }
}

void NarrowFloats(FloatFormat format, const float* values, int64_t count, char* out) {
  if (count <= 0) return;
  if (format == FloatFormat::kF32) {
    std::memcpy(out, values, static_cast<size_t>(count) * sizeof(float));
    return;
  }
  if (format == FloatFormat::kF64) {
    for (int64_t i = 0; i < count; ++i) {
      const double wide = values[i];
      std::memcpy(out + 8 * i, &wide, sizeof(wide));
    }
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    const uint16_t narrow =
        format == FloatFormat::kF16 ? NarrowToHalf(values[i]) : NarrowToBrain(values[i]);
    std::memcpy(out + 2 * i, &narrow, sizeof(narrow));
  }
}

}  // namespace tercio::checkpoint
