#include "worker/engine/pages_ahead.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace tercio::engine {
namespace {

constexpr size_t kBytes = size_t{64} << 20;

absl::Span<std::byte> AsBytes(void* memory) {
  return absl::MakeSpan(static_cast<std::byte*>(memory), kBytes);
}

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
    const PagesAhead ahead({AsBytes(memory_)});
    for (int i = 0; can && i < 3000 && ResidentPages(memory_) < all; ++i) usleep(10'000);
  }
  EXPECT_EQ(ResidentPages(memory_), can ? all : before);
  EXPECT_EQ(static_cast<char*>(memory_)[12345], 'x');
  EXPECT_EQ(static_cast<char*>(memory_)[54321], '\0');
}

TEST_F(PagesAheadTest, WhatIsNoMemoryHereIsLeftAlone) {
  void* nowhere = reinterpret_cast<void*>(uintptr_t{1} << 46);
  const PagesAhead ahead({AsBytes(nowhere)});
  const PagesAhead none({absl::Span<std::byte>()});
}

TEST_F(PagesAheadTest, MemoriesInTurnsAreAllThereOnce) {
  const absl::Span<std::byte> all = AsBytes(memory_);
  const std::vector<absl::Span<std::byte>> pieces =
      InTurns({all.first(40 << 20), all.subspan(40 << 20, 20 << 20), all.last(4 << 20)});
  ASSERT_EQ(pieces.size(), 6u);
  const size_t kPiece = 16 << 20;
  const std::pair<size_t, size_t> expected[] = {{0, kPiece},         {40 << 20, kPiece},
                                                {60 << 20, 4 << 20}, {kPiece, kPiece},
                                                {56 << 20, 4 << 20}, {32 << 20, 8 << 20}};
  for (size_t i = 0; i < pieces.size(); ++i) {
    EXPECT_EQ(pieces[i].data() - all.data(), static_cast<ptrdiff_t>(expected[i].first)) << i;
    EXPECT_EQ(pieces[i].size(), expected[i].second) << i;
  }
}

}  // namespace
}  // namespace tercio::engine
