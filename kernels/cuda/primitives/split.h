// How `count` elements are divided into 16-byte accesses and single ones at both ends.
#pragma once

#include <cstdint>

namespace tercio::kernels::cuda {

// Elements [0, head) one by one, then `groups` groups of `width`, then the rest one by one.
struct Split {
  int64_t head = 0;
  int64_t groups = 0;
  int64_t width = 1;
  int64_t count = 0;
};

// A buffer of a call: its address and the bytes of an element.
struct Operand {
  const void* pointer;
  int64_t element_bytes;
};

// Groups of `width` elements (width * element_bytes a multiple of 16 for each buffer) that begin at
// multiples of 16 bytes in both buffers. No groups if no element has that in both.
Split SplitForGroups(int64_t count, int64_t width, const Operand& a, const Operand& b);

}  // namespace tercio::kernels::cuda
