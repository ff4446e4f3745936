// The argument of operations that drop elements (ops.h).
#pragma once

#include <cstdint>

namespace tercio::kernels {

// Which elements a dropout site drops. Element (row, channel) of a micro-batch is keyed by
// (seed, step, layer, site, sequence, position, channel), where first_row + row = (sequence -
// first_sequence) * T + position. probability 0 means: no dropout, nothing else is read. See
// random.h for the bits.
struct Dropout {
  float probability = 0;
  uint64_t seed = 0;
  uint64_t step = 0;
  uint32_t layer = 0;
  uint32_t site = 0;           // kSite... of random.h
  int64_t first_sequence = 0;  // index in the global batch of the micro-batch's first sequence
  int64_t tokens = 0;          // T
  int64_t first_row = 0;       // row of the micro-batch that the call begins with
};

}  // namespace tercio::kernels
