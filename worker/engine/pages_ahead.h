// Has the kernel find the pages of memory that will be written later, on a thread of its own: else
// who writes there first waits for them, which for a snapshot is the training step. Memory of a
// device is none of the kernel's, and stays as it is.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

namespace tercio {

class PagesAhead {
 public:
  // The memory must outlive it. Its content does not change.
  PagesAhead(void* memory, int64_t bytes);
  // Does not wait for more than a piece.
  ~PagesAhead();
  PagesAhead(const PagesAhead&) = delete;
  PagesAhead& operator=(const PagesAhead&) = delete;

 private:
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace tercio
