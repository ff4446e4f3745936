// Numbers of few bits in blocks (kernels/block_format.h), at the speed of memory: rounding, packing
// and unpacking as kernels/ops.h defines them, of a format that is not kNone; and the values of
// quantised weights.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/thread_pool.h"
#include "kernels/ops.h"

namespace tercio::kernels {

void RoundBlocksCpu(Values to, const float* from, int64_t count, BlockFormat format,
                    ThreadPool& pool);
void PackBlocksCpu(std::byte* packed, const float* from, int64_t count, BlockFormat format,
                   ThreadPool& pool);
void UnpackBlocksCpu(Values to, const std::byte* packed, int64_t count, BlockFormat format,
                     ThreadPool& pool);

// The format is not kNone.
void DequantizeBlocksCpu(const DequantizeBlocksArgs& args, ThreadPool& pool);

}  // namespace tercio::kernels
