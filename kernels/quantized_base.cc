#include "kernels/quantized_base.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/check.h"

namespace tercio::kernels {
namespace {

// The number of a table above which each next code begins.
template <size_t kCodes>
constexpr std::array<float, kCodes - 1> BoundsOf(const std::array<float, kCodes>& table) {
  std::array<float, kCodes - 1> bounds{};
  for (size_t i = 0; i + 1 < kCodes; ++i) bounds[i] = (table[i] + table[i + 1]) / 2;
  return bounds;
}
constexpr std::array<float, 15> kNf4Bounds = BoundsOf(kNf4Table);
constexpr std::array<float, 255> kDynamicBounds = BoundsOf(kDynamicMap);

// Codes of a block, in loops over its elements that a compiler makes vectors of.
using Codes = std::array<int32_t, kBaseBlock>;
using Block = std::array<float, kBaseBlock>;

// How many bounds are below x.
void Nf4Codes(const Block& x, Codes* codes) {
  codes->fill(0);
  for (const float bound : kNf4Bounds) {
    for (size_t i = 0; i < x.size(); ++i) (*codes)[i] += bound < x[i] ? 1 : 0;
  }
}

// The same by bisection.
int32_t DynamicCode(float x) {
  int32_t code = 0;
  for (int32_t step = 128; step > 0; step /= 2) {
    code += kDynamicBounds[static_cast<size_t>(code + step - 1)] < x ? step : 0;
  }
  return code;
}
void DynamicCodes(const Block& x, Codes* codes) {
  codes->fill(0);
  for (int32_t step = 128; step > 0; step /= 2) {
    for (size_t i = 0; i < x.size(); ++i) {
      const auto next = static_cast<size_t>((*codes)[i] + step - 1);
      (*codes)[i] += kDynamicBounds[next] < x[i] ? step : 0;
    }
  }
}

float InverseOf(float scale) {
  constexpr float kLeastScale = 1e-38f;
  return 1.0f / std::max(scale, kLeastScale);
}
float Within(float x) { return std::clamp(x, -1.0f, 1.0f); }

float LargestOf(const float* values, int64_t count) {
  float largest = 0;
  for (int64_t i = 0; i < count; ++i) largest = std::max(largest, std::abs(values[i]));
  return largest;
}

// Maxima lose NaN.
bool AreFinite(const float* values) {
  bool finite = true;
  for (int64_t i = 0; i < kBaseBlock; ++i) {
    finite &= std::abs(values[i]) <= std::numeric_limits<float>::max();
  }
  return finite;
}

void CodesOfBlock(BaseFormat format, const float* values, float inverse, uint8_t* codes) {
  Block x;
  for (size_t i = 0; i < x.size(); ++i) x[i] = Within(values[i] * inverse);
  Codes found;
  if (format == BaseFormat::kInt8) {
    DynamicCodes(x, &found);
    for (size_t i = 0; i < x.size(); ++i) codes[i] = static_cast<uint8_t>(found[i]);
    return;
  }
  Nf4Codes(x, &found);
  for (size_t i = 0; i < x.size(); i += 2) {
    codes[i / 2] = static_cast<uint8_t>(found[i] << 4 | found[i + 1]);
  }
}

}  // namespace

bool QuantizeBase(BaseFormat format, absl::Span<const float> values, std::byte* codes,
                  float* scales) {
  const auto count = static_cast<int64_t>(values.size());
  TERCIO_CHECK(format != BaseFormat::kNone);
  TERCIO_CHECK_EQ(count % kBaseBlock, 0);
  auto* bytes = reinterpret_cast<uint8_t*>(codes);
  for (int64_t first = 0; first < count; first += kBaseBlock) {
    const float* const block = values.data() + first;
    if (!AreFinite(block)) return false;
    const float scale = LargestOf(block, kBaseBlock);
    scales[first / kBaseBlock] = scale;
    CodesOfBlock(format, block, InverseOf(scale), bytes + CodesBytes(format, first));
  }
  return true;
}

ScaleGroups GroupsOfScales(absl::Span<const float> scales) {
  const auto count = static_cast<int64_t>(scales.size());
  ScaleGroups groups;
  double sum = 0;
  for (const float scale : scales) sum += scale;
  groups.mean = static_cast<float>(sum / static_cast<double>(std::max<int64_t>(1, count)));
  for (int64_t first = 0; first < count; first += kScalesOfGroup) {
    float largest = 0;
    for (int64_t i = first; i < std::min(count, first + kScalesOfGroup); ++i) {
      largest = std::max(largest, std::abs(scales[static_cast<size_t>(i)] - groups.mean));
    }
    groups.largest.push_back(largest);
  }
  return groups;
}

uint8_t CodeOfScale(float scale, float mean, float largest) {
  return static_cast<uint8_t>(DynamicCode(Within((scale - mean) * InverseOf(largest))));
}

float ScaleOfCode(uint8_t code, float mean, float largest) {
  // The product is rounded before the sum.
  const float relative = kDynamicMap[code] * largest;
  return relative + mean;
}

void DequantizeBase(BaseFormat format, const std::byte* codes, absl::Span<const float> scales,
                    float* values) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(codes);
  for (const float scale : scales) {
    if (format == BaseFormat::kInt8) {
      for (int64_t i = 0; i < kBaseBlock; ++i) values[i] = kDynamicMap[bytes[i]] * scale;
    } else {
      for (int64_t i = 0; i < kBaseBlock; i += 2) {
        values[i] = kNf4Table[bytes[i / 2] >> 4] * scale;
        values[i + 1] = kNf4Table[bytes[i / 2] & 15] * scale;
      }
    }
    values += kBaseBlock;
    bytes += CodesBytes(format, kBaseBlock);
  }
}

}  // namespace tercio::kernels
