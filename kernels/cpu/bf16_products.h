// The method for products of bf16 values on this processor: fp32 arithmetic or AVX512_BF16. A
// process asks once: if the processor has the instruction, its bits are compared with those of fp32
// arithmetic, and both are timed. Equal bits are a condition, so that ranks, machines and resumed
// runs may choose differently.
//
// Threads: safe from any. The first question takes some 10 milliseconds if there is a choice.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "kernels/cpu/gemm.h"

namespace tercio::kernels {

struct Bf16Facts {
  bool has_instruction = false;
  bool same_bits = false;  // the rest is only measured with the instruction, and with same bits
  double float_seconds = 0;
  double instruction_seconds = 0;
};

// The instruction if it gives the same bits in less time, else fp32 arithmetic.
Bf16Method ChooseBf16Method(const Bf16Facts& facts);

// The choice and its reason, for logs.
std::string DescribeBf16Products(const Bf16Facts& facts);

// As Bf16Dots (gemm.h) of one method.
using Bf16DotsFunction = std::function<void(const uint32_t* a, const uint32_t* b,
                                            const float* start, int64_t steps, float* out)>;

// Whether `dots` are chains of two fused multiply-adds with denormals as zero: seeded sums of
// corners of the format, of any patterns, of values that cancel or round and of results about the
// least normal number. Any NaN equals any other.
bool AreChainsOfFma(const Bf16DotsFunction& dots);

// That, and whole products of odd shapes with the bits of fp32 arithmetic. REQUIRES: the processor
// can execute `method`.
bool HasBitsOfFloat(Bf16Method method);

// The shortest of several runs of each, in turns. `now` in seconds.
struct Seconds {
  double first, second;
};
Seconds TimeBoth(const std::function<void()>& first, const std::function<void()>& second,
                 const std::function<double()>& now);

// Facts of this process; measured by the first call.
const Bf16Facts& Bf16FactsOfProcess();

// The choice of this process, or what a test has set.
Bf16Method Bf16MethodOfProcess();

// From now on every product of this process uses this method, until it is reset to the choice.
// REQUIRES: the processor can execute it, and no product is running.
void SetBf16MethodForTest(Bf16Method method);
void ResetBf16MethodForTest();

}  // namespace tercio::kernels
