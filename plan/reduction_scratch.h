// How much scratch a sum over ranks needs: shared by the memory table and the communicator. Pure.
#pragma once

#include <cstdint>

namespace tercio::plan {

// Elements that the owner of a slice needs to receive it from all others: `size` slices, each a
// multiple of 16.
inline int64_t AllReduceSlice(int64_t count, int size) {
  return ((count + size - 1) / size + 15) / 16 * 16;
}
inline int64_t AllReduceScratch(int64_t count, int size) {
  return size == 1 ? 0 : AllReduceSlice(count, size) * size;
}

// The same for ranks' parts of different sizes, of which the largest is given.
inline int64_t PartSlice(int64_t largest_part) { return (largest_part + 15) / 16 * 16; }
inline int64_t PartsScratch(int64_t largest_part, int size) {
  return size == 1 ? 0 : PartSlice(largest_part) * size;
}

}  // namespace tercio::plan
