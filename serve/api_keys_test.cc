#include "serve/api_keys.h"

#include "common/file.h"
#include "common/temp_dir.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::serve {
namespace {

using ::testing::HasSubstr;

TEST(ApiKeys, AllowTheirBearersOnly) {
  const TempDir directory;
  const std::string path = directory.path() + "/keys";
  ASSERT_TRUE(
      WriteFileDurably(path, "# ours\nfirst-key-0123456789\n\n second-key-012345678 \r\n", 0600)
          .ok());
  const auto keys = ApiKeys::Load(path);
  ASSERT_TRUE(keys.ok()) << keys.status();
  EXPECT_TRUE(keys->Allows("Bearer first-key-0123456789"));
  EXPECT_TRUE(keys->Allows("Bearer second-key-012345678"));
  for (const char* wrong :
       {"", "Bearer ", "first-key-0123456789", "Bearer first-key-012345678", "Bearer # ours",
        "bearer first-key-0123456789", "Bearer first-key-0123456789 "}) {
    EXPECT_FALSE(keys->Allows(wrong)) << wrong;
  }
}

TEST(ApiKeys, FilesWithoutGoodKeysAreRefused) {
  const TempDir directory;
  const std::string path = directory.path() + "/keys";
  EXPECT_FALSE(ApiKeys::Load(path).ok());
  for (const auto& [content, message] :
       std::vector<std::pair<std::string, std::string>>{{"# none\n", "has no key"},
                                                        {"\nshort\n", ":2: a key has at least 16"},
                                                        {"two words of a key\n", ":1: "}}) {
    ASSERT_TRUE(WriteFileDurably(path, content, 0600).ok());
    EXPECT_THAT(std::string(ApiKeys::Load(path).status().message()), HasSubstr(message));
  }
}

}  // namespace
}  // namespace tercio::serve
