// Checks on the device whether two results of attention differ only by rounding: the host waits for
// nothing.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/values.h"

namespace tercio::kernels::cuda {

// Rows of two matrices of one format.
struct TwoResults {
  ConstValues expected;
  ConstValues actual;
  int64_t rows, columns;
  int64_t expected_stride, actual_stride;
};

// The findings of a check. It only ever sets these to 1.
struct CheckFlags {
  uint32_t differ;     // an element is further away than allowed
  uint32_t compared;   // there was something to compare: not only zeros
  uint32_t undecided;  // an element is not a number
};

inline constexpr int kCheckBlocks = 64;

// Allowed is `tolerance` times the largest magnitude of `expected`. `peaks`: kCheckBlocks floats of
// the device that the check may use.
void CheckCuda(const TwoResults& results, float tolerance, float* peaks, CheckFlags* flags,
               cudaStream_t stream);

}  // namespace tercio::kernels::cuda
