#include "cli/progress_bar.h"

#include <cstdlib>

#include "gtest/gtest.h"

namespace tercio::cli {
namespace {

TEST(ProgressText, SaysHowFarHowFastAndHowLong) {
  setenv("LC_ALL", "C", 1);
  EXPECT_EQ(ProgressText(0, 50'000'000, 200'000'000, 5, {}, ProgressStyle::kBar),
            "[#######-----------------------]  25.0%  50.0 of 200.0 MB  10.0 MB/s  ETA 15s");
  EXPECT_EQ(ProgressText(0, 30, 120, 10, {"passages", 1}, ProgressStyle::kPlain),
            " 25.0%  30 of 120 passages  3.0 passages/s  ETA 30s");
}

// The work of an earlier run does not count for the speed of this one.
TEST(ProgressText, CountsFromWhereItBegan) {
  EXPECT_EQ(ProgressText(90'000'000, 100'000'000, 200'000'000, 1, {}, ProgressStyle::kPlain),
            " 50.0%  100.0 of 200.0 MB  10.0 MB/s  ETA 10s");
}

TEST(ProgressText, AtTheEndsNothingIsDividedByZero) {
  EXPECT_EQ(ProgressText(0, 0, 100'000'000, 0, {}, ProgressStyle::kPlain),
            "  0.0%  0.0 of 100.0 MB  0.0 MB/s");
  EXPECT_EQ(ProgressText(0, 0, 0, 0, {}, ProgressStyle::kPlain), "100.0%  0.0 of 0.0 MB  0.0 MB/s");
  EXPECT_EQ(ProgressText(0, 100'000'000, 100'000'000, 10, {}, ProgressStyle::kPlain),
            "100.0%  100.0 of 100.0 MB  10.0 MB/s");
}

}  // namespace
}  // namespace tercio::cli
