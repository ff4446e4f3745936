#include "common/security/join_token.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(JoinTokenTest, RoundTrip) {
  const JoinToken token = {std::string(32, 'a'), std::string(64, '7')};
  const auto parsed = ParseJoinToken(absl::StrCat("  ", FormatJoinToken(token), "\n"));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->secret, token.secret);
  EXPECT_EQ(parsed->fingerprint, token.fingerprint);
}

TEST(JoinTokenTest, RefusesWhatIsNoneAndDoesNotRepeatIt) {
  const std::string secret(32, 'b');
  const std::string fingerprint(64, '1');
  for (const std::string& text : {std::string(), secret, absl::StrCat("tercio1.", secret),
                                  absl::StrCat("tercio2.", secret, ".", fingerprint),
                                  absl::StrCat("tercio1.", secret, "b.", fingerprint),
                                  absl::StrCat("tercio1.", secret, ".", std::string(64, 'G')),
                                  absl::StrCat("tercio1.", secret, ".", fingerprint, ".x")}) {
    const auto parsed = ParseJoinToken(text);
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(parsed.status().message()), Not(HasSubstr(secret)));
  }
}

}  // namespace
}  // namespace tercio
