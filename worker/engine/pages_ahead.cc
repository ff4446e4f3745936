#include "worker/engine/pages_ahead.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

namespace tercio {
namespace {

constexpr uintptr_t kPieceBytes = uintptr_t{16} << 20;

// Whole pages inside [begin, end). A kernel that cannot do it (before 5.14) leaves them for later.
void Populate(uintptr_t begin, uintptr_t end, const std::atomic<bool>& stop) {
  for (; begin < end && !stop; begin += kPieceBytes) {
    void* piece = reinterpret_cast<void*>(begin);  // NOLINT(performance-no-int-to-ptr)
    if (madvise(piece, std::min(kPieceBytes, end - begin), MADV_POPULATE_WRITE) != 0) return;
  }
}

}  // namespace

PagesAhead::PagesAhead(void* memory, int64_t bytes) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto address = reinterpret_cast<uintptr_t>(memory);
  const uintptr_t begin = (address + page - 1) / page * page;
  const uintptr_t end = (address + static_cast<uintptr_t>(bytes)) / page * page;
  // Not worth a thread.
  if (end < begin + kPieceBytes) return;
  thread_ = std::thread([this, begin, end] { Populate(begin, end, stop_); });
}

PagesAhead::~PagesAhead() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
}

}  // namespace tercio
