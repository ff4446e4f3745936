#include "data/sample_order.h"

#include "common/check.h"
#include "kernels/random.h"

namespace tercio::data {

EpochPermutation::EpochPermutation(uint64_t seed, uint64_t epoch, int64_t samples)
    : samples_(static_cast<uint64_t>(samples)), half_bits_(1) {
  TERCIO_CHECK_GE(samples, 1);
  // The halves are equal, as a balanced Feistel network needs them, so the bits are an even number.
  while ((uint64_t{1} << (2 * half_bits_)) < samples_) ++half_bits_;
  mask_ = (uint64_t{1} << half_bits_) - 1;
  // The epoch enters after a first mixing, so that neighbouring seeds and epochs do not coincide.
  uint64_t key = kernels::SplitMix64(kernels::SplitMix64(seed) ^ epoch);
  for (uint64_t& round_key : keys_) round_key = key = kernels::SplitMix64(key);
}

// A Feistel network is a permutation whatever its round function is.
uint64_t EpochPermutation::Encrypt(uint64_t value) const {
  uint64_t left = value >> half_bits_;
  uint64_t right = value & mask_;
  for (const uint64_t key : keys_) {
    const uint64_t mixed = left ^ (kernels::SplitMix64(right ^ key) & mask_);
    left = right;
    right = mixed;
  }
  return left << half_bits_ | right;
}

int64_t EpochPermutation::operator()(int64_t index) const {
  TERCIO_CHECK(index >= 0 && static_cast<uint64_t>(index) < samples_);
  uint64_t value = Encrypt(static_cast<uint64_t>(index));
  // Walking along the cycle until the range is met keeps it a permutation of this range.
  while (value >= samples_) value = Encrypt(value);
  return static_cast<int64_t>(value);
}

int64_t SampleAt(uint64_t seed, int64_t samples, int64_t position) {
  TERCIO_CHECK_GE(position, 0);
  const EpochPermutation permutation(seed, static_cast<uint64_t>(position / samples), samples);
  return permutation(position % samples);
}

}  // namespace tercio::data
