// Dropout in kernels: the masks of kernels/random.h, to the bit those of the CPU.
#pragma once

#include <cuda_runtime.h>

#include "kernels/ops.h"
#include "kernels/random.h"

namespace tercio::kernels::cuda {

// The parameters of a Dropout for a kernel.
struct DropoutBits {
  bool on;
  PhiloxKey key;
  uint32_t threshold;
  float scale;
  uint32_t tag;
  int64_t first_sequence;
  int64_t tokens;
  int64_t first_row;
};

inline DropoutBits MakeDropoutBits(const Dropout& dropout) {
  if (!(dropout.probability > 0)) return {};
  return {true,
          MakeKey(dropout.seed, dropout.step),
          DropThreshold(dropout.probability),
          1.0f / (1.0f - dropout.probability),
          dropout.site | dropout.layer << 4,
          dropout.first_sequence,
          dropout.tokens,
          dropout.first_row};
}

// Multiplies elements [column, column + kCount) of a row with 0 or the scale. column and kCount are
// multiples of 4. Rows as those of Dropout.
template <int kCount>
__device__ __forceinline__ void DropGroup(const DropoutBits& dropout, int64_t row, int64_t column,
                                          float (&values)[kCount]) {
  if (!dropout.on) return;
  const int64_t at = dropout.first_row + row;
  const auto position = static_cast<uint32_t>(at % dropout.tokens);
  const auto sequence = static_cast<uint32_t>(dropout.first_sequence + at / dropout.tokens);
#pragma unroll
  for (int quad = 0; quad < kCount; quad += 4) {
    const PhiloxBlock bits = Philox(
        dropout.key, {static_cast<uint32_t>((column + quad) / 4), position, sequence, dropout.tag});
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      values[quad + j] *= bits[static_cast<size_t>(j)] >= dropout.threshold ? dropout.scale : 0.0f;
    }
  }
}

}  // namespace tercio::kernels::cuda
