#include "coordinator/core/hang_stacks.h"

#include <numeric>
#include <set>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

constexpr int kRanks = 12'288;

// As trainers write it: threads in an order of chance, each process with addresses and numbers of
// its own.
std::string StackOf(int rank, const std::string& place) {
  const auto frame = [rank](int at, const std::string& name) {
    return absl::StrCat("  0x", absl::Hex(0x7f0000000000 + rank * 0x10000 + at), " ", name, "\n");
  };
  const std::string engine =
      absl::StrCat("thread ", 100 + rank, " (tercio-trainer)\n", frame(1, place),
                   frame(2, "TrainingEngine::Step()"), frame(3, "main"));
  std::string pool;
  for (int i = 0; i <= rank % 3; ++i) {
    absl::StrAppend(&pool, "thread ", 30'000 + rank + i, " (grpc_event)\n",
                    frame(10 + i, "epoll_wait"));
  }
  return rank % 2 == 0 ? engine + pool : pool + engine;
}

std::vector<std::string> TextsOf(const std::vector<std::pair<int, std::string>>& lines, int rank) {
  std::vector<std::string> texts;
  for (const auto& [of, text] : lines) {
    if (of == rank) texts.push_back(text);
  }
  return texts;
}

TEST(HangStacksTest, OfThousandsOfRanksTheCulpritAndOneOfEachKindAreReported) {
  HangStacks stacks;
  for (int rank = 0; rank < kRanks; ++rank) {
    stacks.Add(rank, StackOf(rank, rank == 17     ? "ReadSample()"
                                   : rank < 1'000 ? "WaitFor(pipeline)"
                                                  : "WaitFor(all-reduce)"));
  }
  const auto lines = stacks.Report({17});
  EXPECT_LT(lines.size(), 40u);
  ASSERT_FALSE(lines.empty());
  EXPECT_EQ(lines.front().first, 17);
  EXPECT_THAT(TextsOf(lines, 17), ::testing::Contains(HasSubstr("ReadSample()")));
  // The largest kind comes next, with its ranks.
  const auto of_1000 = TextsOf(lines, 1'000);
  ASSERT_FALSE(of_1000.empty());
  EXPECT_THAT(of_1000.front(), HasSubstr("in 11288 ranks: ranks 1000-12287"));
  EXPECT_THAT(TextsOf(lines, 0).front(), HasSubstr("in 999 ranks: ranks 0-16, 18-999"));
  EXPECT_LT(stacks.held_bytes(), 10'000u);
}

// No two alike, each as long as an agent lets them be.
TEST(HangStacksTest, WhatIsKeptAndReportedHasBounds) {
  HangStacks stacks;
  for (int rank = 0; rank < kRanks; ++rank) {
    std::string stack = absl::StrCat("thread 1 (main)\n  0x1 Function", rank, "()\n");
    while (stack.size() < (32 << 10)) {
      absl::StrAppend(&stack, "  0x2 Deeper(", stack.size(), ")\n");
    }
    stacks.Add(rank, stack);
  }
  EXPECT_LT(stacks.held_bytes(), size_t{128} << 20);
  const auto lines = stacks.Report({12'000});
  EXPECT_LE(lines.size(), HangStacks::kMostLines);
  EXPECT_EQ(lines.front().first, 12'000);
  EXPECT_THAT(TextsOf(lines, 12'000), ::testing::Contains(HasSubstr("Function12000()")));
  EXPECT_THAT(lines.back().second, HasSubstr("omitted: stacks of"));
}

TEST(HangStacksTest, ManyCulpritsLeaveRoomForNothingElseAndStillHaveBounds) {
  HangStacks stacks;
  std::vector<int> culprits(kRanks);
  std::iota(culprits.begin(), culprits.end(), 0);
  for (const int rank : culprits) stacks.Add(rank, absl::StrCat("at ", rank, "\nmain\n"));
  const auto lines = stacks.Report(culprits);
  EXPECT_LE(lines.size(), HangStacks::kMostLines);
  EXPECT_EQ(lines.front().first, 0);
  EXPECT_THAT(lines.back().second, HasSubstr("from 12224 ranks"));
}

TEST(HangStacksTest, ACulpritThatStandsWhereOthersDoHasItsLines) {
  HangStacks stacks;
  stacks.Add(2, "  0xa Wait()");
  stacks.Add(5, "  0xb Wait()");
  stacks.Add(6, "");
  EXPECT_THAT(stacks.Report({5}),
              ElementsAre(Pair(5,
                               "stack: the same apart from addresses in 2 ranks: ranks 2, 5; "
                               "addresses are those of rank 2"),
                          Pair(5, "stack:   0xa Wait()")));
  stacks.Clear();
  EXPECT_TRUE(stacks.Report({5}).empty());
  EXPECT_EQ(stacks.held_bytes(), 0u);
}

TEST(HangStacksTest, LongLinesAndListsOfRanksAreCut) {
  HangStacks stacks;
  const std::string line = std::string(999, 'x') + "\xc3\xa4" + std::string(9000, 'y');
  for (int rank = 0; rank < 2'000; rank += 2) stacks.Add(rank, line);
  const auto lines = stacks.Report({});
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_LT(lines[0].second.size(), 400u);
  EXPECT_THAT(lines[0].second, HasSubstr(", ...; addresses"));
  EXPECT_EQ(lines[1].second, "stack: " + std::string(999, 'x')) << "no half character";
}

}  // namespace
}  // namespace tercio::coordinator
