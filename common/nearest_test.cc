#include "common/nearest.h"

#include <limits>

#include "gtest/gtest.h"

namespace tercio {
namespace {

TEST(Nearest, EditDistance) {
  EXPECT_EQ(EditDistance("", ""), 0);
  EXPECT_EQ(EditDistance("", "abc"), 3);
  EXPECT_EQ(EditDistance("list", "lst"), 1);
  EXPECT_EQ(EditDistance("drain", "drian"), 2);
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3);
}

TEST(Nearest, TheFirstOfSeveralWithinTheBound) {
  const std::vector<std::string> words = {"list", "last", "get"};
  EXPECT_EQ(Nearest("lst", words, 2), "list");
  EXPECT_EQ(Nearest("frobnicate", words, 2), "");
  EXPECT_EQ(Nearest("frobnicate", words, std::numeric_limits<int>::max()), "list");
  EXPECT_EQ(Nearest("lst", {}, 2), "");
}

TEST(Nearest, LongWordsMayDifferInMore) {
  EXPECT_EQ(DidYouMean("--outptu", {"--output", "--seed"}), "; did you mean '--output'?");
  EXPECT_EQ(DidYouMean("shakespeer-lagre", {"shakespeare-large"}),
            "; did you mean 'shakespeare-large'?");
  EXPECT_EQ(DidYouMean("-x", {"-o"}), "; did you mean '-o'?");
  EXPECT_EQ(DidYouMean(std::string(1000, 'x'), {std::string(999, 'x')}), "");
  EXPECT_EQ(DidYouMean("help", {"generate", "run"}), "");
}

}  // namespace
}  // namespace tercio
