#include "common/mutex.h"

#include <chrono>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace tercio {
namespace {

struct Counter {
  Mutex mutex;
  ConditionVariable changed;
  int count TERCIO_GUARDED_BY(mutex) = 0;
};

bool IsFree(Mutex& mutex) {
  bool free = false;
  std::thread other([&] {
    if (!mutex.TryLock()) return;
    mutex.Unlock();
    free = true;
  });
  other.join();
  return free;
}

TEST(MutexTest, ThreadsTakeTurns) {
  Counter counter;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&] {
      for (int i = 0; i < 10'000; ++i) {
        MutexLock lock(counter.mutex);
        ++counter.count;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  MutexLock lock(counter.mutex);
  EXPECT_EQ(counter.count, 40'000);
}

TEST(MutexTest, ALockIsHeldUntilTheEndOfItsBlockButForAPause) {
  Mutex mutex;
  {
    MutexLock lock(mutex);
    EXPECT_FALSE(IsFree(mutex));
    lock.Unlock();
    EXPECT_TRUE(IsFree(mutex));
    lock.Lock();
    EXPECT_FALSE(IsFree(mutex));
  }
  EXPECT_TRUE(IsFree(mutex));
  {
    MutexLock lock(mutex);
    lock.Unlock();
  }
  EXPECT_TRUE(IsFree(mutex));
}

TEST(MutexTest, AWaitLetsTheMutexGoAndReturnsWithIt) {
  Counter counter;
  std::thread other([&] {
    MutexLock lock(counter.mutex);
    counter.count = 1;
    counter.changed.NotifyOne();
  });
  {
    MutexLock lock(counter.mutex);
    while (counter.count == 0) counter.changed.Wait(counter.mutex);
    EXPECT_FALSE(IsFree(counter.mutex));
  }
  EXPECT_TRUE(IsFree(counter.mutex));
  other.join();
}

TEST(MutexTest, AWaitForAConditionSaysWhetherItHolds) {
  Counter counter;
  const auto is_set = [&]() TERCIO_REQUIRES(counter.mutex) { return counter.count > 0; };
  MutexLock lock(counter.mutex);
  EXPECT_FALSE(counter.changed.WaitFor(counter.mutex, std::chrono::milliseconds(1), is_set));
  EXPECT_FALSE(counter.changed.WaitUntil(counter.mutex, std::chrono::steady_clock::now(), is_set));
  EXPECT_FALSE(IsFree(counter.mutex));
  std::thread other([&] {
    MutexLock other_lock(counter.mutex);
    counter.count = 1;
    counter.changed.NotifyAll();
  });
  EXPECT_TRUE(counter.changed.WaitFor(counter.mutex, std::chrono::minutes(1), is_set));
  lock.Unlock();
  other.join();
}

TEST(MutexTest, AWaitThatNothingEndsEndsWithItsTime) {
  Counter counter;
  MutexLock lock(counter.mutex);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(5);
  while (counter.changed.WaitUntil(counter.mutex, deadline)) {
  }
  EXPECT_GE(std::chrono::steady_clock::now(), deadline);
  while (counter.changed.WaitFor(counter.mutex, std::chrono::milliseconds(1))) {
  }
}

TEST(MutexTest, ATimedMutexIsWaitedForNoLonger) {
  TimedMutex mutex;
  TimedMutexLock lock(mutex);
  bool taken = false;
  std::thread other([&] {
    if (!mutex.TryLockFor(std::chrono::milliseconds(1))) return;
    mutex.Unlock();
    taken = true;
  });
  other.join();
  EXPECT_FALSE(taken);
}

TEST(MutexTest, ARecursiveMutexIsTakenAgainByItsThread) {
  RecursiveMutex mutex;
  const auto again = [&] { RecursiveMutexLock inner(mutex); };
  RecursiveMutexLock lock(mutex);
  again();
}

}  // namespace
}  // namespace tercio
