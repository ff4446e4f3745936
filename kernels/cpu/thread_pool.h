// A small pool of threads for loops inside operations. With one thread everything runs inline,
// without locks.
//
// Threads: ParallelFor is called by one thread at a time (the stream's thread). Workers spin for a
// moment after a loop, since the next one usually follows immediately, and then sleep. A loop waits
// only for workers that have taken part in it: where other processes have the cores, the caller
// does all of it and does not stop until the machine has woken a worker that finds nothing to do.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace tercio::kernels {

// The body of a loop: a reference to a function object that outlives the loop, so that no operation
// allocates memory.
class LoopBody {
 public:
  template <typename Function>
  LoopBody(const Function& function)  // NOLINT(google-explicit-constructor)
      : function_(&function), call_([](const void* object, int64_t index, int thread) {
          (*static_cast<const Function*>(object))(index, thread);
        }) {}
  void operator()(int64_t index, int thread) const { call_(function_, index, thread); }

 private:
  const void* function_;
  void (*call_)(const void* object, int64_t index, int thread);
};

class ThreadPool {
 public:
  // threads >= 1, the caller included.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // body(index, thread) for every index in [0, count), in any order, and returns when all are done.
  // thread is in [0, threads()) and never runs two bodies at the same time.
  using Body = LoopBody;
  void ParallelFor(int64_t count, const Body& body);

 private:
  void Work(int thread);
  void RunItems(const Body& body, int64_t count, int thread);

  std::vector<std::thread> workers_;
  // Written while generation_ is even and joined_ is 0, read by workers that have joined.
  const Body* body_ = nullptr;
  int64_t count_ = 0;
  std::atomic<int64_t> next_{0};         // next index to take
  std::atomic<uint32_t> generation_{0};  // odd while a loop is open to workers
  std::atomic<uint32_t> joined_{0};      // workers between joining a loop and leaving it
  std::atomic<bool> stopping_{false};
};

}  // namespace tercio::kernels
