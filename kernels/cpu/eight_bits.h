// Numbers of 8 bits, E4M3 and E5M2, and the scaled products of them (kernels/ops.h). They are the
// reference for a backend with real ones: plain loops, not fast. Pure.
#pragma once

#include <cstdint>

#include "kernels/cpu/thread_pool.h"
#include "kernels/ops.h"

namespace tercio::kernels {

// The number that x becomes by Quantize, as a float.
float RoundToEightBits(Format format, float x);

// The number that the bits represent, and the bits of a number of the format: those of a GPU, where
// every NaN is 0x7f.
float FromEightBits(Format format, uint8_t bits);
uint8_t ToEightBits(Format format, float number);

// 0 if there is none. NaN is ignored.
float LargestMagnitude(const float* x, int64_t count);

void QuantizeCpu(const QuantizeArgs& args);
// Each sum in double, k ascending, rounded to a float at its end.
void ScaledMatmulCpu(const ScaledMatmulArgs& args, ThreadPool& pool);

}  // namespace tercio::kernels
