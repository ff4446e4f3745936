#include "kernels/cpu/thread_pool.h"

#include <immintrin.h>

#include "common/check.h"

namespace tercio::kernels {
namespace {

// About 20 microseconds: longer than the serial code between two operations, far shorter than a
// time slice.
constexpr int kSpins = 2000;

// Waits until `value` differs from `old`.
void WaitForChange(const std::atomic<uint32_t>& value, uint32_t old) {
  for (int i = 0; i < kSpins; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    _mm_pause();
  }
  value.wait(old, std::memory_order_acquire);
}

bool IsOpen(uint32_t generation) { return generation % 2 == 1; }

// Waits until a loop other than `seen` is open.
void WaitForLoop(const std::atomic<uint32_t>& generation, uint32_t seen) {
  for (;;) {
    uint32_t now = seen;
    for (int i = 0; i < kSpins; ++i) {
      now = generation.load(std::memory_order_acquire);
      if (now != seen && IsOpen(now)) return;
      _mm_pause();
    }
    generation.wait(now, std::memory_order_acquire);
  }
}

}  // namespace

ThreadPool::ThreadPool(int threads) {
  TERCIO_CHECK_GE(threads, 1);
  workers_.reserve(threads - 1);
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { Work(i); });
}

ThreadPool::~ThreadPool() {
  stopping_.store(true, std::memory_order_release);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::RunItems(const Body& body, int64_t count, int thread) {
  for (;;) {
    const int64_t index = next_.fetch_add(1, std::memory_order_relaxed);
    if (index >= count) return;
    body(index, thread);
  }
}

void ThreadPool::ParallelFor(int64_t count, const Body& body) {
  if (workers_.empty() || count <= 1) {
    for (int64_t i = 0; i < count; ++i) body(i, 0);
    return;
  }
  // The loop is described before the generation changes, which makes it visible.
  body_ = &body;
  count_ = count;
  next_.store(0, std::memory_order_relaxed);
  generation_.fetch_add(1);
  generation_.notify_all();
  // The caller works, too, as thread 0.
  RunItems(body, count, 0);
  // Either a worker that joins sees that the loop is closed, or this thread sees that it has
  // joined: both look at the other's variable after they have written their own, in the one order
  // that all sequentially consistent operations have.
  generation_.fetch_add(1);
  for (;;) {
    const uint32_t joined = joined_.load();
    if (joined == 0) return;
    WaitForChange(joined_, joined);
  }
}

void ThreadPool::Work(int thread) {
  uint32_t seen = 0;
  for (;;) {
    WaitForLoop(generation_, seen);
    if (stopping_.load(std::memory_order_acquire)) return;
    joined_.fetch_add(1);
    seen = generation_.load();
    if (IsOpen(seen)) RunItems(*body_, count_, thread);
    // The last worker wakes the caller; the others would wake it for nothing.
    if (joined_.fetch_sub(1) == 1) joined_.notify_all();
  }
}

}  // namespace tercio::kernels
