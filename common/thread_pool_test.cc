#include "common/thread_pool.h"

#include <atomic>
#include <future>

#include "gtest/gtest.h"

namespace tercio {
namespace {

TEST(ThreadPoolTest, DoesEverythingBeforeItEnds) {
  std::atomic<int> done{0};
  {
    ThreadPool pool(3);
    for (int i = 0; i < 1000; ++i) {
      pool.Run([&] {
        if (++done % 2 == 0) pool.Run([&] { ++done; });
      });
    }
  }
  EXPECT_GT(done, 1000);
}

TEST(ThreadPoolTest, ATaskThatBlocksDoesNotKeepTheOthers) {
  ThreadPool pool(2);
  std::promise<void> open;
  std::promise<void> reached;
  pool.Run([&] { open.get_future().wait(); });
  pool.Run([&] { reached.set_value(); });
  reached.get_future().wait();
  open.set_value();
}

}  // namespace
}  // namespace tercio
