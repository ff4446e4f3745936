#include "worker/engine/class_outcomes.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "common/check.h"
#include "plan/quality.h"

namespace tercio::engine {
namespace {

float FromFloat16(uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const int mantissa = bits & 1023;
  float magnitude = 0;
  if (exponent == 31) {
    magnitude = mantissa != 0 ? std::numeric_limits<float>::quiet_NaN()
                              : std::numeric_limits<float>::infinity();
  } else {
    // Numbers without an exponent have no leading one, and the smallest exponent.
    magnitude = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -24)
                              : std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
  }
  return bits >> 15 != 0 ? -magnitude : magnitude;
}

float ValueAt(const std::byte* values, kernels::Format stored, int64_t index) {
  if (stored == kernels::Format::kFloat32) {
    float value = 0;
    std::memcpy(&value, values + index * 4, sizeof(value));
    return value;
  }
  uint16_t bits = 0;
  std::memcpy(&bits, values + index * 2, sizeof(bits));
  // bf16 is the upper half of fp32.
  return stored == kernels::Format::kFloat16 ? FromFloat16(bits)
                                             : std::bit_cast<float>(uint32_t{bits} << 16);
}

}  // namespace

int PredictedClass(const std::byte* logits, kernels::Format stored, int classes) {
  int best = 0;
  float largest = ValueAt(logits, stored, 0);
  for (int i = 1; i < classes; ++i) {
    const float value = ValueAt(logits, stored, i);
    if (!(value > largest)) continue;
    largest = value;
    best = i;
  }
  return best;
}

void ClassOutcomes::Take(int64_t first, int64_t count, kernels::ConstValues logits,
                         device::Stream& stream) {
  TERCIO_CHECK(!kernels::IsEightBits(logits.stored()));
  stored_ = logits.stored();
  // Copies that are under way write into it, so its size never changes after the first.
  if (logits_.empty()) {
    logits_.resize(static_cast<size_t>(logits.BytesFor(classes_)) * sequences_);
  }
  stream.CopyToHost(logits_.data() + logits.BytesFor(first * classes_), logits.data(),
                    logits.BytesFor(count * classes_));
}

const std::vector<double>& ClassOutcomes::Encode(absl::Span<const int32_t> labels) {
  TERCIO_CHECK_EQ(labels.size(), sequences_);
  outcomes_.resize(sequences_);
  const auto row = static_cast<size_t>(kernels::BytesOf(stored_) * classes_);
  for (size_t i = 0; i < sequences_; ++i) {
    outcomes_[i] = static_cast<double>(labels[i]) * classes_ +
                   PredictedClass(logits_.data() + i * row, stored_, classes_);
  }
  return outcomes_;
}

void ClassOutcomes::Count(absl::Span<const double> outcomes, v1::Confusion* confusion) {
  for (const double outcome : outcomes) {
    const auto number = static_cast<int64_t>(outcome);
    plan::Count(static_cast<int>(number / confusion->classes()),
                static_cast<int>(number % confusion->classes()), confusion);
  }
}

}  // namespace tercio::engine
