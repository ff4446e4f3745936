#include "coordinator/access/node_patterns.h"

#include "gtest/gtest.h"

namespace tercio::coordinator {
namespace {

TEST(NodePatternsTest, FitWholeNames) {
  EXPECT_TRUE(FitsNodePatterns("gpu-*", "gpu-17"));
  EXPECT_FALSE(FitsNodePatterns("gpu-*", "my-gpu-17"));
  EXPECT_FALSE(FitsNodePatterns("gpu-?", "gpu-17"));
  EXPECT_TRUE(FitsNodePatterns("gpu-?,login.example", "login.example"));
  EXPECT_FALSE(FitsNodePatterns("login.example", "loginxexample"));
  EXPECT_TRUE(FitsNodePatterns("*-a-*-b", "x-a-a-b-b"));
  EXPECT_FALSE(FitsNodePatterns("gpu-*", ""));
}

TEST(NodePatternsTest, SomeAreNone) {
  for (const char* good : {"gpu-*", "a", "10.0.?.?", "one,two,*.rack-7"}) {
    EXPECT_TRUE(CheckNodePatterns(good).ok()) << good;
  }
  for (const char* bad : {"", "*", "?*-", "gpu-*,", "gpu *", "gpu-[0-9]", "a\n", "gpu-*,**"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(CheckNodePatterns(bad))) << bad;
  }
  EXPECT_FALSE(CheckNodePatterns(std::string(65, 'a')).ok());
}

}  // namespace
}  // namespace tercio::coordinator
