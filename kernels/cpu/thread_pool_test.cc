#include "kernels/cpu/thread_pool.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <vector>

namespace tercio::kernels {
namespace {

TEST(ThreadPool, EveryIndexRunsOnce) {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    for (int64_t count = 0; count < 200; ++count) {
      std::vector<std::atomic<int>> runs(count);
      pool.ParallelFor(count, [&](int64_t i, int thread) {
        ASSERT_LT(thread, threads);
        ++runs[i];
      });
      for (const std::atomic<int>& each : runs) ASSERT_EQ(each.load(), 1);
    }
  }
}

// A body that outlives its loop would write to a vector that is gone, or into the next one.
TEST(ThreadPool, NoBodyRunsAfterItsLoop) {
  ThreadPool pool(8);
  for (int loop = 0; loop < 20000; ++loop) {
    std::vector<int> marks(3, 0);
    std::atomic<bool> open{true};
    pool.ParallelFor(3, [&](int64_t i, int) {
      EXPECT_TRUE(open.load());
      marks[i] = loop;
    });
    open = false;
    for (const int mark : marks) ASSERT_EQ(mark, loop);
  }
}

TEST(ThreadPool, NoThreadRunsTwoBodiesAtOnce) {
  ThreadPool pool(4);
  std::vector<std::atomic<int>> inside(4);
  for (int loop = 0; loop < 2000; ++loop) {
    pool.ParallelFor(16, [&](int64_t, int thread) {
      EXPECT_EQ(inside[thread].fetch_add(1), 0);
      inside[thread].fetch_sub(1);
    });
  }
}

TEST(ThreadPool, WorkersTakePart) {
  ThreadPool pool(2);
  std::atomic<bool> helped{false};
  // The caller's item ends only when the worker has run the other one.
  pool.ParallelFor(2, [&](int64_t, int thread) {
    if (thread == 1) helped = true;
    while (!helped) sched_yield();
  });
  EXPECT_TRUE(helped);
}

}  // namespace
}  // namespace tercio::kernels
