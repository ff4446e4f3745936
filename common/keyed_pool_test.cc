#include "common/keyed_pool.h"

#include <atomic>
#include <functional>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"

namespace tercio {
namespace {

TEST(KeyedPoolTest, OneKeyThatHangsKeepsNoOtherWaiting) {
  absl::Notification released;
  std::atomic<int> hung = 0;
  KeyedPool pool(/*per_key=*/2, /*most=*/8);
  for (int i = 0; i < 20; ++i) {
    pool.Run("hangs", [&] {
      ++hung;
      released.WaitForNotification();
    });
  }
  absl::Notification done;
  pool.Run("works", [&] { done.Notify(); });
  EXPECT_TRUE(done.WaitForNotificationWithTimeout(absl::Seconds(20)));
  EXPECT_LE(hung, 2);
  EXPECT_FALSE(pool.Drain(absl::Milliseconds(20)));
  released.Notify();
  EXPECT_TRUE(pool.Drain(absl::Seconds(20)));
  EXPECT_EQ(hung, 20);
}

TEST(KeyedPoolTest, TasksOfOneKeyKeepTheirOrder) {
  std::vector<int> order;
  {
    KeyedPool pool(/*per_key=*/1, /*most=*/4);
    for (int i = 0; i < 100; ++i) pool.Run("key", [&order, i] { order.push_back(i); });
  }
  ASSERT_EQ(order.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
}

TEST(KeyedPoolTest, WorkIsDoneThoughNoFurtherThreadCanBeMade) {
  int started = 0;
  std::atomic<int> done = 0;
  {
    KeyedPool pool(/*per_key=*/2, /*most=*/8, [&](std::function<void()> run) {
      if (++started > 1) {
        throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again));
      }
      return std::thread(std::move(run));
    });
    EXPECT_EQ(started, 1) << "later there may be none";
    for (int i = 0; i < 10; ++i) pool.Run(i % 2 == 0 ? "one" : "two", [&] { ++done; });
    EXPECT_TRUE(pool.Drain(absl::Seconds(20)));
  }
  EXPECT_EQ(done, 10);
}

TEST(KeyedPoolTest, AnExceptionEndsItsTaskOnly) {
  std::atomic<int> done = 0;
  {
    KeyedPool pool(/*per_key=*/1, /*most=*/1);
    pool.Run("key", [] { throw std::runtime_error("broken"); });
    pool.Run("key", [&] { ++done; });
    pool.Run("other", [&] { ++done; });
  }
  EXPECT_EQ(done, 2);
}

}  // namespace
}  // namespace tercio
