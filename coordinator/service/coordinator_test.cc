#include "coordinator/service/coordinator.h"

#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::coordinator {
namespace {

using ::testing::MatchesRegex;

TEST(TokenSource, GivesEveryTokenOnce) {
  TokenSource source;
  std::set<std::string> tokens;
  std::set<std::string> halves;  // a byte that is given out twice is in two of them
  for (int i = 0; i < 1000; ++i) {
    const std::string token = source.Next();
    EXPECT_THAT(token, MatchesRegex("[0-9a-f]+"));
    EXPECT_EQ(token.size(), 32u);
    tokens.insert(token);
    halves.insert(token.substr(0, 16));
    halves.insert(token.substr(16));
  }
  EXPECT_EQ(tokens.size(), 1000u);
  EXPECT_EQ(halves.size(), 2000u);
}

}  // namespace
}  // namespace tercio::coordinator
