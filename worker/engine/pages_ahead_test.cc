#include "worker/engine/pages_ahead.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "gtest/gtest.h"

namespace tercio {
namespace {

constexpr size_t kBytes = size_t{64} << 20;

size_t ResidentPages(void* memory) {
  std::vector<unsigned char> pages(kBytes / static_cast<size_t>(sysconf(_SC_PAGESIZE)));
  EXPECT_EQ(mincore(memory, kBytes, pages.data()), 0);
  return static_cast<size_t>(
      std::count_if(pages.begin(), pages.end(), [](unsigned char page) { return page & 1; }));
}

class PagesAheadTest : public ::testing::Test {
 protected:
  void* memory_ = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ~PagesAheadTest() override { munmap(memory_, kBytes); }
};

TEST_F(PagesAheadTest, FindsThePagesAndLeavesTheContent) {
  const size_t all = kBytes / static_cast<size_t>(sysconf(_SC_PAGESIZE));
  static_cast<char*>(memory_)[12345] = 'x';
  // A kernel before 5.14 finds pages only for who writes.
  const bool can = madvise(memory_, 1, MADV_POPULATE_WRITE) == 0;
  const size_t before = ResidentPages(memory_);
  ASSERT_LT(before, all);
  {
    const PagesAhead ahead(memory_, static_cast<int64_t>(kBytes));
    for (int i = 0; can && i < 3000 && ResidentPages(memory_) < all; ++i) usleep(10'000);
  }
  EXPECT_EQ(ResidentPages(memory_), can ? all : before);
  EXPECT_EQ(static_cast<char*>(memory_)[12345], 'x');
  EXPECT_EQ(static_cast<char*>(memory_)[54321], '\0');
}

TEST_F(PagesAheadTest, WhatIsNoMemoryHereIsLeftAlone) {
  void* nowhere = reinterpret_cast<void*>(uintptr_t{1} << 46);
  const PagesAhead ahead(nowhere, static_cast<int64_t>(kBytes));
  const PagesAhead none(nullptr, 0);
}

}  // namespace
}  // namespace tercio
