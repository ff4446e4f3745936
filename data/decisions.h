// Random decisions about a sample. Each is a hash of what it is about, so that a sample does not
// depend on the thread, the node or the order in which samples are read (docs/formats.md).
//
// Pure.
#pragma once

#include <cstdint>

#include "data/sample_dataset.h"
#include "kernels/random.h"

namespace tercio::data {

class Decisions {
 public:
  Decisions(SampleKey key, int64_t sample)
      : key_(kernels::SplitMix64(
            kernels::SplitMix64(kernels::SplitMix64(kernels::SplitMix64(key.seed)) ^ key.epoch) ^
            static_cast<uint64_t>(sample))) {}

  // 64 random bits. `kind` is the data set's own number for what is decided. REQUIRES: position is
  // not negative, and below 2^32.
  uint64_t At(uint64_t kind, int64_t position = 0) const {
    // The position has the lower 32 bits, so that no two decisions have the same input.
    return kernels::SplitMix64(key_ ^ (kind << 32 | static_cast<uint64_t>(position)));
  }

 private:
  uint64_t key_;
};

// A number below `bound` from 64 random bits.
// The upper half of the product is nearly uniform, and needs no loop as a remainder without bias
// would.
inline uint64_t Below(uint64_t random, uint64_t bound) {
  return static_cast<uint64_t>((static_cast<unsigned __int128>(random) * bound) >> 64);
}

// The upper 53 bits are what a double holds exactly, so the result is below 1.
inline double Fraction(uint64_t random) { return static_cast<double>(random >> 11) * 0x1p-53; }

}  // namespace tercio::data
