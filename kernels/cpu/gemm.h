// Threaded product of matrices with a fixed order of summation per element (docs/numerics.md).
#pragma once

#include <cstdint>

#include "kernels/cpu/thread_pool.h"
#include "kernels/ops.h"

namespace tercio::kernels {

// How a product of bf16 values is computed; all ways give the same bits (gemm_pairs-inl.h).
// kFloat: as any other. kPairs: two values in a word, two FMAs; slower, for comparisons.
// kInstruction: two values in a word, VDPBF16PS; REQUIRES: HasBf16Instruction().
enum class Bf16Method { kFloat, kPairs, kInstruction };

// C (m,n) = or += A (m,k) B (k,n), then + bias (n) if given, then rounded to `result`.
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
  Format operands = Format::kFloat32;      // kBfloat16: denormals count as zero
  Format result = Format::kFloat32;        // the bits of RoundCpu
  Bf16Method method = Bf16Method::kFloat;  // read with bf16 operands only
};

// Floats of scratch for any product with up to `threads` threads; 64-byte aligned.
int64_t GemmScratch(int threads);

void Gemm(const GemmArgs& args, ThreadPool& pool, float* scratch);

// Whether the processor and the instruction set that was chosen for this process have VDPBF16PS.
bool HasBf16Instruction();

// out[lane] = the Dots of a and b, `steps` of each lane, added to start[lane]: words [step][lane].
// kDotLanes lanes. REQUIRES: method is not kFloat.
inline constexpr int64_t kDotLanes = 16;
void Bf16Dots(Bf16Method method, const uint32_t* a, const uint32_t* b, const float* start,
              int64_t steps, float* out);

}  // namespace tercio::kernels
