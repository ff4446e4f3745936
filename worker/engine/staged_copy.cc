#include "worker/engine/staged_copy.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "common/check.h"

namespace tercio::engine {
namespace {

constexpr char kScratch[] = "workspace.norm_gradient";

int64_t BytesOf(int64_t count) { return count * static_cast<int64_t>(sizeof(float)); }

// Whether the bits are zero that a format of 16 bits lacks of a float's significand.
bool HasLastBitsZero(float value, int bits) {
  return (std::bit_cast<uint32_t>(value) & ((uint32_t{1} << bits) - 1)) == 0;
}

bool IsFloat16(float value) {
  constexpr float kLeastNormal = 0x1p-14f;
  constexpr float kLargest = 65504;
  if (!std::isfinite(value)) return true;
  const float magnitude = std::abs(value);
  if (magnitude > kLargest) return false;
  if (magnitude >= kLeastNormal) return HasLastBitsZero(value, 13);
  // Subnormal ones are multiples of the least.
  const float multiple = magnitude * 0x1p24f;
  return multiple == std::floor(multiple);
}

}  // namespace

bool AreNumbersOf(kernels::Format format, absl::Span<const float> values) {
  const auto all = [&](bool (*is)(float)) { return std::all_of(values.begin(), values.end(), is); };
  switch (format) {
    case kernels::Format::kFloat32:
      return true;
    case kernels::Format::kBfloat16:
      return all([](float value) { return HasLastBitsZero(value, 16); });
    case kernels::Format::kFloat16:
      return all(IsFloat16);
    case kernels::Format::kE4m3:
    case kernels::Format::kE5m2:
      break;
  }
  return false;
}

StagedCopy::StagedCopy(Arena& arena, device::Stream& stream)
    : stream_(stream),
      scratch_(arena.Floats(kScratch)),
      capacity_(arena.Bytes(kScratch) / static_cast<int64_t>(sizeof(float))) {}

void StagedCopy::FromHost(kernels::Values to, const float* from, int64_t count) {
  if (to.format() == kernels::Format::kFloat32) {
    return stream_.CopyFromHost(to.floats(), from, BytesOf(count));
  }
  TERCIO_CHECK_GT(capacity_, 0);
  for (int64_t at = 0; at < count; at += capacity_) {
    const int64_t piece = std::min(capacity_, count - at);
    stream_.CopyFromHost(scratch_, from + at, BytesOf(piece));
    stream_.ops().Copy(to + at, scratch_, piece);
  }
}

void StagedCopy::ToHost(float* to, kernels::ConstValues from, int64_t count) {
  if (from.stored() == kernels::Format::kFloat32) {
    return stream_.CopyToHost(to, from.floats(), BytesOf(count));
  }
  TERCIO_CHECK_GT(capacity_, 0);
  for (int64_t at = 0; at < count; at += capacity_) {
    const int64_t piece = std::min(capacity_, count - at);
    stream_.CopyToHost(to + at, Floats(from + at, piece), BytesOf(piece));
  }
}

const float* StagedCopy::Floats(kernels::ConstValues values, int64_t count) {
  if (values.stored() == kernels::Format::kFloat32) return values.floats();
  TERCIO_CHECK_LE(count, capacity_);
  stream_.ops().Copy(scratch_, values, count);
  return scratch_;
}

}  // namespace tercio::engine
