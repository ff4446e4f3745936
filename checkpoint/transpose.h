// Transposing fp32 matrices at the speed of memory. Pure.
#pragma once

#include <cstdint>

namespace tercio::checkpoint {

// to[column * to_stride + row] = from[row * from_stride + column] for all of rows x columns;
// strides are counted in values.
void Transpose(const float* from, int64_t rows, int64_t columns, int64_t from_stride, float* to,
               int64_t to_stride);

}  // namespace tercio::checkpoint
