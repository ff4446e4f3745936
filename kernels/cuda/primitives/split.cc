#include "kernels/cuda/primitives/split.h"

#include <algorithm>

#include "common/check.h"

namespace tercio::kernels::cuda {
namespace {

// The widest access of a thread has 16 bytes.
constexpr int64_t kAccessBytes = 16;

bool BeginsAligned(const Operand& operand, int64_t element) {
  const auto address = reinterpret_cast<uintptr_t>(operand.pointer);
  return (address + static_cast<uintptr_t>(element * operand.element_bytes)) % kAccessBytes == 0;
}

}  // namespace

Split SplitForGroups(int64_t count, int64_t width, const Operand& a, const Operand& b) {
  // Both buffers are accessed in the same groups, so each must hold whole accesses.
  TERCIO_CHECK_EQ(width * a.element_bytes % kAccessBytes, 0);
  TERCIO_CHECK_EQ(width * b.element_bytes % kAccessBytes, 0);
  Split split;
  split.width = width;
  split.count = count;
  // Alignment repeats after a group, so later elements need not be tried.
  for (int64_t head = 0; head < std::min(width, count); ++head) {
    if (!BeginsAligned(a, head) || !BeginsAligned(b, head)) continue;
    split.head = head;
    split.groups = (count - head) / width;
    break;
  }
  return split;
}

}  // namespace tercio::kernels::cuda
