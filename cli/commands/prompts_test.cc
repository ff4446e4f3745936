#include "cli/commands/prompts.h"

#include <string>

#include "common/file.h"
#include "common/temp_dir.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::cli {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Prompts : public ::testing::Test {
 protected:
  absl::StatusOr<std::vector<Prompt>> Read(const std::string& name, const std::string& content) {
    const std::string path = directory_.path() + "/" + name;
    EXPECT_TRUE(WriteFileDurably(path, content).ok());
    return PromptsInFile(path);
  }

  const TempDir directory_;
};

TEST_F(Prompts, EachLineIsOne) {
  const auto prompts = Read("prompts.txt", "Once upon\n\n{\"prompt\": 1}\r\nlast");
  ASSERT_TRUE(prompts.ok()) << prompts.status();
  ASSERT_EQ(prompts->size(), 3u);
  EXPECT_EQ((*prompts)[0].text, "Once upon");
  EXPECT_EQ((*prompts)[1].text, "{\"prompt\": 1}");
  EXPECT_EQ((*prompts)[2].text, "last");
}

TEST_F(Prompts, ObjectsHaveATextOrIds) {
  const auto prompts = Read("prompts.jsonl", R"({"prompt": "two\nlines", "id": 7}
{"prompt_ids": [3, 0, 5]})");
  ASSERT_TRUE(prompts.ok()) << prompts.status();
  ASSERT_EQ(prompts->size(), 2u);
  EXPECT_EQ((*prompts)[0].text, "two\nlines");
  EXPECT_FALSE((*prompts)[1].text.has_value());
  EXPECT_THAT((*prompts)[1].ids, ElementsAre(3, 0, 5));
}

TEST_F(Prompts, AnErrorNamesFileAndLine) {
  for (const char* bad : {"nonsense", "[]", R"({"text": "x"})", R"({"prompt_ids": [1, "2"]})",
                          R"({"prompt_ids": [1.5]})", R"({"prompt_ids": [4294967297]})",
                          R"({"prompt_ids": [-1]})", R"({"prompt": 3})"}) {
    const auto prompts = Read("p.jsonl", std::string("{\"prompt\": \"x\"}\n") + bad + "\n");
    EXPECT_THAT(std::string(prompts.status().message()),
                AllOf(HasSubstr("p.jsonl:2: "), HasSubstr("\"prompt_ids\"")))
        << bad;
  }
  EXPECT_THAT(std::string(Read("empty.txt", "\n\n").status().message()),
              HasSubstr("write one on each line"));
  EXPECT_TRUE(absl::IsNotFound(PromptsInFile(directory_.path() + "/none").status()));
}

TEST_F(Prompts, ATextNeedsATokenizer) {
  std::vector<Prompt> ids = {{.text = std::nullopt, .ids = {1, 2}}};
  EXPECT_TRUE(EncodePrompts("model", nullptr, &ids).ok());
  std::vector<Prompt> text = {{.text = "x", .ids = {}}};
  EXPECT_THAT(std::string(EncodePrompts("model", nullptr, &text).message()),
              HasSubstr("model has no tokenizer"));
}

}  // namespace
}  // namespace tercio::cli
