// Fibers keep their stacks and registers apart.
#include "emulation/fiber.h"

#include <memory>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace tercio::emulation {
namespace {

struct Counter {
  double start;
  std::vector<double> seen;
};

void Count(void* argument) {
  auto* counter = static_cast<Counter*>(argument);
  double values[16];  // lives on the stack over all switches
  for (int i = 0; i < 16; ++i) values[i] = counter->start * i;
  for (;;) {
    for (double& value : values) {
      counter->seen.push_back(value);
      value += 1;
      Fiber::Suspend();
    }
  }
}

TEST(Fiber, ManyKeepTheirStacks) {
  std::vector<Counter> counters(500);
  std::vector<std::unique_ptr<Fiber>> fibers;
  for (size_t i = 0; i < counters.size(); ++i) {
    counters[i].start = static_cast<double>(i) + 0.5;
    fibers.push_back(std::make_unique<Fiber>(&Count, &counters[i]));
  }
  for (int round = 0; round < 40; ++round) {
    for (const auto& fiber : fibers) fiber->Resume();
  }
  for (const Counter& counter : counters) {
    ASSERT_EQ(counter.seen.size(), 40u);
    for (int i = 0; i < 40; ++i) {
      const int times = i / 16;
      ASSERT_EQ(counter.seen[static_cast<size_t>(i)], counter.start * (i % 16) + times);
    }
  }
}

struct Ring {
  std::vector<std::unique_ptr<Fiber>> fibers;
  std::vector<size_t> seen;
};
struct Member {
  Ring* ring;
  size_t number;
};

// Each runs the next one; the last one returns to the test.
void PassOn(void* argument) {
  auto* member = static_cast<Member*>(argument);
  Ring& ring = *member->ring;
  for (;;) {
    ring.seen.push_back(member->number);
    if (member->number + 1 < ring.fibers.size()) {
      Fiber::SwitchTo(*ring.fibers[member->number + 1]);
    } else {
      Fiber::Suspend();
    }
  }
}

TEST(Fiber, OneSwitchesToTheNext) {
  Ring ring;
  std::vector<Member> members;
  for (size_t i = 0; i < 50; ++i) members.push_back({&ring, i});
  for (Member& member : members) {
    ring.fibers.push_back(std::make_unique<Fiber>(&PassOn, &member));
  }
  for (int round = 0; round < 20; ++round) {
    // A round may begin anywhere, after one that began elsewhere.
    const size_t first = static_cast<size_t>(round) % 7;
    ring.seen.clear();
    ring.fibers[first]->Resume();
    ASSERT_EQ(ring.seen.size(), 50 - first);
    for (size_t i = 0; i < ring.seen.size(); ++i) EXPECT_EQ(ring.seen[i], first + i);
  }
}

TEST(Fiber, ThreadsHaveTheirOwn) {
  std::vector<std::thread> threads;
  std::vector<Counter> counters(4);
  for (Counter& counter : counters) {
    threads.emplace_back([&counter] {
      counter.start = 2;
      Fiber fiber(&Count, &counter);
      for (int i = 0; i < 1000; ++i) fiber.Resume();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Counter& counter : counters) EXPECT_EQ(counter.seen.size(), 1000u);
}

// Each frame is written through the next, so that all of them exist at once.
[[gnu::noinline]] int Depth(int n, volatile char* above) {
  volatile char frame[1024];
  frame[0] = above[0];
  const int below = n == 0 ? 0 : Depth(n - 1, frame);
  above[0] = frame[0];
  return below + 1;
}

void Overflow(void*) {
  char first = 0;
  Depth(1 << 20, &first);
  Fiber::Suspend();
}

TEST(FiberDeath, OverflowDoesNotReachOtherMemory) {
  EXPECT_DEATH(
      {
        Fiber fiber(&Overflow, nullptr);
        fiber.Resume();
      },
      "");
}

}  // namespace
}  // namespace tercio::emulation
