#include "kernels/cpu/eight_bits.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/check.h"
#include "kernels/cpu/parts.h"

namespace tercio::kernels {
namespace {

struct Layout {
  int fraction_bits;
  int least_exponent;  // least of normal numbers
  float largest;
};

Layout LayoutOf(Format format) {
  TERCIO_CHECK(IsEightBits(format));
  // The formats are those of Micikevicius et al., "FP8 formats for deep learning" (2022).
  return format == Format::kE4m3 ? Layout{3, -6, 448.0f} : Layout{2, -14, 57344.0f};
}

}  // namespace

float RoundToEightBits(Format format, float x) {
  // E4M3 has no infinity, so both formats make it a NaN.
  if (!std::isfinite(x)) return std::numeric_limits<float>::quiet_NaN();
  const Layout layout = LayoutOf(format);
  const float magnitude = std::abs(x);
  if (magnitude == 0) return x;
  // Below the least normal exponent all numbers have the same step.
  const int exponent = std::max(std::ilogb(magnitude), layout.least_exponent);
  // Multiples of this are the numbers; the division is exact.
  const float step = std::ldexp(1.0f, exponent - layout.fraction_bits);
  const float rounded = std::nearbyint(magnitude / step) * step;
  // Numbers beyond the largest become the largest, as GPUs convert them.
  return std::copysign(std::min(rounded, layout.largest), x);
}

float FromEightBits(Format format, uint8_t bits) {
  const Layout layout = LayoutOf(format);
  const int fraction = bits & ((1 << layout.fraction_bits) - 1);
  const int exponent = (bits & 0x7f) >> layout.fraction_bits;
  // E4M3 gives up only its last pattern for NaN, E5M2 the whole exponent as IEEE does.
  const bool special = format == Format::kE4m3 ? (bits & 0x7f) == 0x7f : exponent == 31;
  float magnitude = 0;
  if (special) {
    magnitude = format == Format::kE5m2 && fraction == 0 ? std::numeric_limits<float>::infinity()
                                                         : std::numeric_limits<float>::quiet_NaN();
  } else if (exponent == 0) {
    magnitude =
        std::ldexp(static_cast<float>(fraction), layout.least_exponent - layout.fraction_bits);
  } else {
    magnitude = std::ldexp(static_cast<float>((1 << layout.fraction_bits) + fraction),
                           layout.least_exponent + exponent - 1 - layout.fraction_bits);
  }
  return (bits & 0x80) != 0 ? -magnitude : magnitude;
}

uint8_t ToEightBits(Format format, float number) {
  if (std::isnan(number)) return 0x7f;
  const uint8_t sign = std::signbit(number) ? 0x80 : 0;
  // A search over 128 patterns cannot disagree with FromEightBits, and is quick enough for tests.
  for (int bits = 0; bits < 0x80; ++bits) {
    if (FromEightBits(format, static_cast<uint8_t>(bits)) == std::abs(number)) {
      return static_cast<uint8_t>(bits | sign);
    }
  }
  TERCIO_CHECK(false);  // no number of the format
  return 0;
}

float LargestMagnitude(const float* x, int64_t count) {
  float largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    // The comparison is false for NaN, which must not become a scale.
    if (std::abs(x[i]) > largest) largest = std::abs(x[i]);
  }
  return largest;
}

void QuantizeCpu(const QuantizeArgs& args) {
  const Format format = args.plain == nullptr ? args.transposed.format() : args.plain.format();
  TERCIO_CHECK(args.transposed == nullptr || args.transposed.format() == format);
  const float* x = args.x.floats();
  if (args.largest != nullptr) {
    *args.largest = std::max(*args.largest, LargestMagnitude(x, args.rows * args.columns));
  }
  for (int64_t i = 0; i < args.rows; ++i) {
    for (int64_t j = 0; j < args.columns; ++j) {
      const float value =
          RoundToEightBits(format, x[i * args.columns + j] * args.scale->multiplier);
      if (args.plain != nullptr) args.plain.floats()[i * args.columns + j] = value;
      if (args.transposed != nullptr) args.transposed.floats()[j * args.rows + i] = value;
    }
  }
}

void ScaledMatmulCpu(const ScaledMatmulArgs& args, ThreadPool& pool) {
  // One remainder checks all three sizes, since the unit is a power of two.
  TERCIO_CHECK_EQ((args.m | args.n | args.k) % kScaledUnit, 0);
  TERCIO_CHECK(IsEightBits(args.a.format()) && args.b.format() == Format::kE4m3);
  const float* bias = args.bias.floats();
  OverRows(args.m, args.n * args.k, pool, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const float* a = args.a.floats() + i * args.k;
      for (int64_t j = 0; j < args.n; ++j) {
        const float* b = args.b.floats() + j * args.k;
        // Sums in double do not show the order in which they were added.
        double sum = 0;
        for (int64_t k = 0; k < args.k; ++k) sum += static_cast<double>(a[k]) * b[k];
        sum *= static_cast<double>(args.a_scale->inverse) * args.b_scale->inverse;
        if (bias != nullptr) sum += bias[j];
        float& c = args.c.floats()[i * args.n + j];
        c = static_cast<float>(args.accumulate ? c + sum : sum);
      }
    }
  });
}

}  // namespace tercio::kernels
