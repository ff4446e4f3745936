// Ids and masks of conversations against those of transformers.
#include "data/chat/tokens.h"

#include "absl/strings/str_cat.h"
#include "common/file.h"
#include "common/temp_dir.h"
#include "data/chat/reader.h"
#include "data/chat/recognition.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::data::chat {
namespace {

using ::testing::HasSubstr;
using tokenizer::Tokenizer;

constexpr char kTokenizers[] = "tests/tokenizer/fixtures/";

// The fixture's tokenizer, with further special tokens behind its own.
Tokenizer Load(const std::string& file, const Json& added, const TempDir& scratch) {
  std::string path = kTokenizers + file;
  if (!added.empty()) {
    Json json = Json::parse(ReadFile(path).value());
    for (const auto& [content, id] : added.items()) {
      json["added_tokens"].push_back(
          {{"id", id}, {"content", content}, {"special", true}, {"normalized", false}});
    }
    path = scratch.path() + "/tokenizer.json";
    EXPECT_TRUE(WriteFileDurably(path, json.dump()).ok());
  }
  return Tokenizer::Load(path).value();
}

Rendered Render(const Json& c) {
  const Json line = {{"messages", c["messages"]}};
  const auto conversation = ReadConversation(line.dump(), Format::kMessages, "").value();
  const Template& found = *FindTemplate(c["template"].get<std::string>());
  return found.render(conversation, {c["bos"], c["eos"]}).value();
}

TEST(Tokens, IdsAndMasksAreThoseOfTransformers) {
  const Json cases = Json::parse(ReadFile("tests/chat/fixtures/tokens.json").value());
  TempDir scratch;
  std::map<std::string, int> compared;
  for (const Json& c : cases) {
    const std::string file = c["tokenizer"];
    const Tokenizer tokenizer = Load(file, c["added"], scratch);
    const auto tokens = Tokenize(Render(c), LossOn::kAssistant, tokenizer);
    ASSERT_TRUE(tokens.ok()) << tokens.status();
    EXPECT_EQ(tokens->ids, c["ids"].get<std::vector<int32_t>>()) << c["template"] << " " << file;
    std::vector<int> counts(tokens->counts.begin(), tokens->counts.end());
    EXPECT_EQ(counts, c["assistant"].get<std::vector<int>>())
        << c["template"] << " " << file << " " << c["messages"].dump();
    ++compared[file];
  }
  EXPECT_EQ(compared.size(), 4);
  EXPECT_EQ(cases.size(), 47);
}

Rendered TwoTurns() { return {"Q1 A1! Q2 A2!", {{3, 6}, {10, 13}}}; }

TEST(Tokens, WhatCounts) {
  const Tokenizer bytes = Tokenizer::Bytes();
  const auto counted = [&](LossOn loss_on) {
    const auto tokens = Tokenize(TwoTurns(), loss_on, bytes).value();
    std::string marks;
    for (const bool counts : tokens.counts) marks += counts ? '^' : '.';
    return marks;
  };
  EXPECT_EQ(counted(LossOn::kAssistant), "...^^^....^^^");
  EXPECT_EQ(counted(LossOn::kLast), "..........^^^");
  EXPECT_EQ(counted(LossOn::kAll), "^^^^^^^^^^^^^");
  const auto none = Tokenize({"Q1", {}}, LossOn::kLast, bytes).value();
  EXPECT_THAT(none.counts, testing::Each(false));
}

// SentencePiece's own files know <s> and </s>, but do not find them in texts.
TEST(Tokens, BeginningsAndEndsOfSentencePiece) {
  const Tokenizer tokenizer = Tokenizer::Load(absl::StrCat(kTokenizers, "bytes.model")).value();
  const RenderOptions options = OptionsFor(*FindTemplate("llama2"), tokenizer);
  EXPECT_EQ(options.bos, "<s>");
  EXPECT_EQ(options.eos, "</s>");
  const auto tokens = Tokenize({"<s>the time</s><s>of", {{3, 15}}}, LossOn::kAssistant, tokenizer);
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_EQ(tokens->ids.front(), *tokenizer.beginning());
  EXPECT_EQ(std::count(tokens->ids.begin(), tokens->ids.end(), *tokenizer.beginning()), 2);
  const auto end = std::find(tokens->ids.begin(), tokens->ids.end(), *tokenizer.end_of_text());
  ASSERT_NE(end, tokens->ids.end());
  for (size_t i = 0; i < tokens->ids.size(); ++i) {
    const bool inside = i > 0 && i <= static_cast<size_t>(end - tokens->ids.begin());
    EXPECT_EQ(tokens->counts[i], inside) << i;
  }
}

TEST(Tokens, SpecialTokensThatATokenizerLacks) {
  const Tokenizer llama3 = Tokenizer::Load(absl::StrCat(kTokenizers, "llama3.json")).value();
  EXPECT_THAT(MissingTokens(*FindTemplate("chatml"), llama3),
              testing::ElementsAre("<|im_start|>", "<|im_end|>"));
  TempDir scratch;
  const Tokenizer chat =
      Load("llama3.json", Json::parse(R"({"<|im_start|>": 654, "<|im_end|>": 655})"), scratch);
  EXPECT_THAT(MissingTokens(*FindTemplate("chatml"), chat), testing::IsEmpty());
}

TEST(Recognition, TemplateOfATokenizer) {
  TempDir scratch;
  const auto fault = [&](const std::string& tokenizer) {
    return std::string(TemplateOfTokenizer(tokenizer).status().message());
  };
  EXPECT_THAT(fault("bytes"), HasSubstr("'bytes' comes with no chat template; name one with "
                                        "data.template: chatml, llama2"));
  EXPECT_THAT(fault(scratch.path()), HasSubstr("no tokenizer_config.json"));
  const std::string config = scratch.path() + "/tokenizer_config.json";
  ASSERT_TRUE(WriteFileDurably(config, R"({"bos_token": "<s>"})").ok());
  EXPECT_THAT(fault(scratch.path() + "/tokenizer.json"),
              HasSubstr("tokenizer_config.json: has no chat_template"));
  ASSERT_TRUE(WriteFileDurably(config, R"({"chat_template": "{{ messages }}"})").ok());
  EXPECT_THAT(fault(scratch.path()),
              AllOf(HasSubstr("the tokenizer's chat template (14 bytes, SHA-256 "),
                    HasSubstr("is none that Tercio knows; name one with data.template: ")));
  ASSERT_TRUE(WriteFileDurably(config, R"({"chat_template": 3})").ok());
  EXPECT_THAT(fault(scratch.path()), HasSubstr("neither a text nor a list"));
  const std::string chatml =
      "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] "
      "+ '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ "
      "'<|im_start|>assistant\n' }}{% endif %}";
  const Json listed = {
      {"chat_template",
       {{{"name", "tool_use"}, {"template", "x"}}, {{"name", "default"}, {"template", chatml}}}}};
  ASSERT_TRUE(WriteFileDurably(config, listed.dump()).ok());
  ASSERT_TRUE(TemplateOfTokenizer(scratch.path()).ok());
  EXPECT_EQ((*TemplateOfTokenizer(scratch.path()))->name, "chatml");
  ASSERT_TRUE(WriteFileDurably(scratch.path() + "/chat_template.jinja", "{{ other }}").ok());
  EXPECT_THAT(fault(scratch.path()), HasSubstr("is none that Tercio knows"));
}

}  // namespace
}  // namespace tercio::data::chat
