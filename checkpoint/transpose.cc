#include "checkpoint/transpose.h"

#include <algorithm>
#include <cstring>

namespace tercio::checkpoint {
namespace {

// Four values, in a register.
using Four = float __attribute__((vector_size(16)));

// A line of the cache holds this many values: tiles of lines are read and written whole, and few
// enough lines for a cache in which those of a power-of-two stride share their places.
constexpr int64_t kTile = 16;

Four LoadFour(const float* from) {
  Four values;
  std::memcpy(&values, from, sizeof(values));
  return values;
}

void StoreFour(const Four& values, float* to) { std::memcpy(to, &values, sizeof(values)); }

void TransposeFourByFour(const float* from, int64_t from_stride, float* to, int64_t to_stride) {
  const Four a = LoadFour(from);
  const Four b = LoadFour(from + from_stride);
  const Four c = LoadFour(from + 2 * from_stride);
  const Four d = LoadFour(from + 3 * from_stride);
  // Two rounds of interleaving transpose the four rows without leaving the registers.
  const Four ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5);
  const Four ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
  const Four cd_low = __builtin_shufflevector(c, d, 0, 4, 1, 5);
  const Four cd_high = __builtin_shufflevector(c, d, 2, 6, 3, 7);
  StoreFour(__builtin_shufflevector(ab_low, cd_low, 0, 1, 4, 5), to);
  StoreFour(__builtin_shufflevector(ab_low, cd_low, 2, 3, 6, 7), to + to_stride);
  StoreFour(__builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5), to + 2 * to_stride);
  StoreFour(__builtin_shufflevector(ab_high, cd_high, 2, 3, 6, 7), to + 3 * to_stride);
}

}  // namespace

void Transpose(const float* from, int64_t rows, int64_t columns, int64_t from_stride, float* to,
               int64_t to_stride) {
  for (int64_t row = 0; row < rows; row += kTile) {
    const int64_t last_row = std::min(rows, row + kTile);
    for (int64_t column = 0; column < columns; column += kTile) {
      // Whole tiles take the quick way, and the edges, which are few, the simple one.
      if (row + kTile <= rows && column + kTile <= columns) {
        for (int64_t i = row; i < row + kTile; i += 4) {
          for (int64_t k = column; k < column + kTile; k += 4) {
            TransposeFourByFour(from + i * from_stride + k, from_stride, to + k * to_stride + i,
                                to_stride);
          }
        }
        continue;
      }
      const int64_t last_column = std::min(columns, column + kTile);
      for (int64_t k = column; k < last_column; ++k) {
        for (int64_t i = row; i < last_row; ++i) to[k * to_stride + i] = from[i * from_stride + k];
      }
    }
  }
}

}  // namespace tercio::checkpoint
