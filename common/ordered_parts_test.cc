#include "common/ordered_parts.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace tercio {
namespace {

// Parts are completed out of order.
absl::Status MakeNumber(int64_t index, OutputPart* part) {
  std::this_thread::sleep_for(std::chrono::microseconds(index * 7919 % 200));
  part->text = absl::StrCat(index, ",");
  part->bytes = part->text;
  return absl::OkStatus();
}

TEST(StreamParts, EveryTakerSeesAllPartsInOrder) {
  constexpr int64_t kParts = 200;
  std::string expected;
  for (int64_t i = 0; i < kParts; ++i) absl::StrAppend(&expected, i, ",");
  for (const int makers : {1, 2, 5}) {
    std::string first, second;
    const TakePart takers[] = {[&](std::string_view bytes) {
                                 first += bytes;
                                 return absl::OkStatus();
                               },
                               [&](std::string_view bytes) {
                                 second += bytes;
                                 return absl::OkStatus();
                               }};
    EXPECT_TRUE(StreamParts(kParts, makers, MakeNumber, takers).ok());
    EXPECT_EQ(first, expected);
    EXPECT_EQ(second, expected);
  }
}

TEST(StreamParts, NoPartsAreNoWork) {
  const TakePart taker = [](std::string_view) { return absl::InternalError("called"); };
  EXPECT_TRUE(StreamParts(0, 2, MakeNumber, {&taker, 1}).ok());
}

TEST(StreamParts, ASlowTakerBoundsWhatIsMade) {
  std::atomic<int64_t> made{0};
  int64_t taken = 0;
  int64_t most_ahead = 0;
  const TakePart taker = [&](std::string_view) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    most_ahead = std::max(most_ahead, made - taken);
    ++taken;
    return absl::OkStatus();
  };
  const MakePart make = [&](int64_t index, OutputPart* part) {
    ++made;
    return MakeNumber(index, part);
  };
  EXPECT_TRUE(StreamParts(100, 3, make, {&taker, 1}).ok());
  EXPECT_EQ(taken, 100);
  EXPECT_LE(most_ahead, 3 + 4);
}

TEST(StreamParts, TheFirstFaultyPartIsToldAndEndsTheWork) {
  for (int repeat = 0; repeat < 20; ++repeat) {
    std::atomic<int64_t> made{0};
    std::string seen;
    const TakePart taker = [&](std::string_view bytes) {
      seen += bytes;
      return absl::OkStatus();
    };
    const MakePart make = [&](int64_t index, OutputPart* part) {
      ++made;
      if (index >= 5) return absl::DataLossError(absl::StrCat("part ", index));
      return MakeNumber(index, part);
    };
    EXPECT_EQ(StreamParts(1000000, 4, make, {&taker, 1}), absl::DataLossError("part 5"));
    EXPECT_EQ(seen, "0,1,2,3,4,");
    EXPECT_LE(made, 5 + 8);
  }
}

TEST(StreamParts, ATakersFaultEndsTheWork) {
  std::atomic<int64_t> made{0};
  int64_t seen = 0;
  const TakePart takers[] = {[&](std::string_view) {
                               return ++seen == 3 ? absl::ResourceExhaustedError("full")
                                                  : absl::OkStatus();
                             },
                             [](std::string_view) { return absl::OkStatus(); }};
  const MakePart make = [&](int64_t index, OutputPart* part) {
    ++made;
    return MakeNumber(index, part);
  };
  EXPECT_EQ(StreamParts(1000000, 2, make, takers), absl::ResourceExhaustedError("full"));
  EXPECT_EQ(seen, 3);
  EXPECT_LE(made, 3 + 6);
}

TEST(ForEachOnThreads, VisitsEveryIndexOnce) {
  for (const int64_t count : {0, 1, 3, 100}) {
    std::vector<std::atomic<int>> visits(static_cast<size_t>(count));
    ForEachOnThreads(count, 4, [&](int64_t i) { ++visits[static_cast<size_t>(i)]; });
    for (const auto& times : visits) EXPECT_EQ(times, 1);
  }
}

}  // namespace
}  // namespace tercio
