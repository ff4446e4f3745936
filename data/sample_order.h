// The order of samples: a pure function of (seed, position in the run). Every epoch is a
// permutation of all samples, the stream of samples runs across epochs, and nothing is stored but
// the position, so a resumed run continues at the exact sample and any data parallel degree reads
// the same batches.
//
// Position p of the run belongs to epoch p / samples. Step k (1-based), sequence s of the global
// batch B is position (k-1)*B + s.
//
// The permutation: a balanced Feistel network of 8 rounds over the smallest even number of bits (at
// least 2) that can hold `samples` values; results outside [0, samples) are encrypted again (less
// than 4 times on average). Round keys come from splitmix64. docs/formats.md has the formulas and a
// worked example.
//
// Pure; O(1) memory; safe from any thread.
#pragma once

#include <array>
#include <cstdint>

namespace tercio::data {

// One epoch's permutation of [0, samples).
class EpochPermutation {
 public:
  // REQUIRES: samples >= 1.
  EpochPermutation(uint64_t seed, uint64_t epoch, int64_t samples);

  // REQUIRES: 0 <= index < samples.
  int64_t operator()(int64_t index) const;

 private:
  uint64_t Encrypt(uint64_t value) const;

  static constexpr int kRounds = 8;
  uint64_t samples_;
  int half_bits_;
  uint64_t mask_;
  std::array<uint64_t, kRounds> keys_;
};

// The sample at a position of the run. REQUIRES: samples >= 1, position >= 0.
int64_t SampleAt(uint64_t seed, int64_t samples, int64_t position);

}  // namespace tercio::data
