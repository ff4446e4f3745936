// Has the kernel find the pages of memory that will be written later, on a thread of its own:
// otherwise the first write waits for them, and loading a checkpoint or copying a snapshot takes
// several times as long. Memory of a device is not the kernel's, and is left alone.
#pragma once

#include <atomic>
#include <cstddef>
#include <thread>
#include <vector>

#include "absl/types/span.h"

namespace tercio::engine {

// The memories piece by piece in turns: for memories that are written side by side.
std::vector<absl::Span<std::byte>> InTurns(const std::vector<absl::Span<std::byte>>& memories);

class PagesAhead {
 public:
  // `memory` is in the order in which it will be written, and must outlive this. Its content does
  // not change.
  explicit PagesAhead(std::vector<absl::Span<std::byte>> memory);
  // Waits for one piece at most.
  ~PagesAhead();
  PagesAhead(const PagesAhead&) = delete;
  PagesAhead& operator=(const PagesAhead&) = delete;

 private:
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace tercio::engine
