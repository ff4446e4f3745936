#include "worker/engine/pages_ahead.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <utility>

namespace tercio::engine {
namespace {

// The destructor waits for the piece that is under way, so pieces are small.
constexpr size_t kPieceBytes = size_t{16} << 20;

// Populates the whole pages inside of the memory, piece by piece. False: the kernel cannot do it
// (before 5.14), or it is not memory of this process.
bool Populate(absl::Span<std::byte> memory, const std::atomic<bool>& stop) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto address = reinterpret_cast<uintptr_t>(memory.data());
  // Parts of pages at both ends are left to their first write: other memory may share them.
  const uintptr_t end = (address + memory.size()) / page * page;
  for (uintptr_t at = (address + page - 1) / page * page; at < end && !stop; at += kPieceBytes) {
    void* piece = reinterpret_cast<void*>(at);  // NOLINT(performance-no-int-to-ptr)
    if (madvise(piece, std::min(kPieceBytes, end - at), MADV_POPULATE_WRITE) != 0) return false;
  }
  return true;
}

}  // namespace

std::vector<absl::Span<std::byte>> InTurns(const std::vector<absl::Span<std::byte>>& memories) {
  size_t most = 0;
  for (const absl::Span<std::byte>& memory : memories) most = std::max(most, memory.size());
  std::vector<absl::Span<std::byte>> pieces;
  for (size_t at = 0; at < most; at += kPieceBytes) {
    for (const absl::Span<std::byte>& memory : memories) {
      if (at < memory.size()) pieces.push_back(memory.subspan(at, kPieceBytes));
    }
  }
  return pieces;
}

PagesAhead::PagesAhead(std::vector<absl::Span<std::byte>> memory) {
  size_t bytes = 0;
  for (const absl::Span<std::byte>& piece : memory) bytes += piece.size();
  // Too little for a thread.
  if (bytes < kPieceBytes) return;
  thread_ = std::thread([this, memory = std::move(memory)] {
    for (const absl::Span<std::byte>& piece : memory) {
      if (stop_ || !Populate(piece, stop_)) return;
    }
  });
}

PagesAhead::~PagesAhead() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
}

}  // namespace tercio::engine
