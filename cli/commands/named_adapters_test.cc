#include "cli/commands/named_adapters.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::cli {
namespace {

using ::testing::HasSubstr;

TEST(NamedAdapters, HaveTheNameThatIsGivenOrThatOfTheirDirectory) {
  const auto adapters =
      NamedAdapters({"short=runs/a/step-40", "runs/b/", "runs/x=y/c", "./d"}, "base");
  ASSERT_TRUE(adapters.ok()) << adapters.status();
  ASSERT_EQ(adapters->size(), 4u);
  const char* const expected[][2] = {
      {"short", "runs/a/step-40"}, {"b", "runs/b/"}, {"c", "runs/x=y/c"}, {"d", "./d"}};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ((*adapters)[i].name, expected[i][0]);
    EXPECT_EQ((*adapters)[i].directory, expected[i][1]);
  }
}

TEST(NamedAdapters, NamesAreDifferent) {
  EXPECT_THAT(std::string(NamedAdapters({"a/x", "b/x"}, "base").status().message()),
              HasSubstr("x is the name of a/x already; give it another one (--adapter NAME=b/x)"));
  EXPECT_THAT(std::string(NamedAdapters({"base=b"}, "base").status().message()),
              HasSubstr("base is the name of the model itself already"));
  for (const char* option : {"", "=dir", "name=", "/"}) {
    EXPECT_THAT(std::string(NamedAdapters({option}, "base").status().message()),
                HasSubstr("give NAME=DIR"))
        << option;
  }
}

}  // namespace
}  // namespace tercio::cli
