// Threaded product of matrices with a fixed order of summation per element (docs/numerics.md).
#pragma once

#include <cstdint>

#include "kernels/cpu/thread_pool.h"

namespace tercio::kernels {

// C (m,n) = or += A (m,k) B (k,n), then + bias (n) if given.
// A's element (i,p) is a[i * a_row_stride + p * a_column_stride]; B likewise; C is row-major with
// stride n. k is cut into leaves of `leaf` and each leaf into blocks of at most 256.
struct GemmArgs {
  const float* a;
  int64_t a_row_stride, a_column_stride;
  const float* b;
  int64_t b_row_stride, b_column_stride;
  float* c;
  const float* bias = nullptr;
  int64_t m, n, k;
  int64_t leaf;
  bool accumulate = false;
};

// Floats of scratch for any product with up to `threads` threads; 64-byte aligned.
int64_t GemmScratch(int threads);

void Gemm(const GemmArgs& args, ThreadPool& pool, float* scratch);

}  // namespace tercio::kernels
