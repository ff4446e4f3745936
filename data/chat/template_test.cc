// Templates against what transformers renders (tests/chat/make_chat_fixtures.py).
#include "data/chat/template.h"

#include <set>

#include "absl/strings/str_cat.h"
#include "common/file.h"
#include "data/chat/reader.h"
#include "data/chat/recognition.h"
#include "data/chat/template_names.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::data::chat {
namespace {

using ::testing::HasSubstr;

Json Fixture() { return Json::parse(ReadFile("tests/chat/fixtures/templates.json").value()); }

// The tested reader is the way of every conversation into a template.
Conversation Read(const Json& c) {
  Json line = {{"messages", c["messages"]}};
  if (!c["tools"].is_null()) line["tools"] = c["tools"];
  auto conversation = ReadConversation(line.dump(), Format::kMessages, "");
  EXPECT_TRUE(conversation.ok()) << conversation.status() << line.dump(1);
  return conversation.ok() ? *conversation : Conversation{};
}

std::vector<std::vector<size_t>> RangesOf(const Rendered& rendered) {
  std::vector<std::vector<size_t>> ranges;
  for (const TextRange& range : rendered.assistant) ranges.push_back({range.begin, range.end});
  return ranges;
}

TEST(Template, TextsAndRangesAreThoseOfTransformers) {
  std::set<std::string> names;
  int texts = 0;
  int ranges = 0;
  int refused = 0;
  for (const Json& entry : Fixture()) {
    const std::string name = entry["name"];
    names.insert(name);
    const Template* const found = FindTemplate(name);
    ASSERT_NE(found, nullptr) << name;
    for (const Json& c : entry["cases"]) {
      const auto rendered =
          found->render(Read(c), {entry["bos"], entry["eos"], c["generation_prompt"]});
      if (c.contains("error") || !rendered.ok()) {
        EXPECT_FALSE(rendered.ok()) << name << c.dump(1);
        ++refused;
        continue;
      }
      EXPECT_EQ(rendered->text, c["text"].get<std::string>()) << name << c["messages"].dump();
      ++texts;
      if (!c.contains("assistant")) continue;
      EXPECT_EQ(RangesOf(*rendered), c["assistant"].get<std::vector<std::vector<size_t>>>())
          << name << ": " << rendered->text;
      ++ranges;
    }
  }
  EXPECT_EQ(names, std::set<std::string>(TemplateNames().begin(), TemplateNames().end()));
  // Gemma has no system messages: 6. Llama 3.1 calls one tool at a time: 6 in each of two
  // templates. Mistral would leave out system messages, and texts beside tool calls: 8.
  EXPECT_EQ(refused, 26);
  EXPECT_EQ(texts, 238 - refused);
  EXPECT_GE(ranges, 90);
}

TEST(Template, PublishedTextsAreRecognised) {
  int published = 0;
  for (const Json& entry : Fixture()) {
    if (!entry.contains("sha256")) continue;
    SCOPED_TRACE(entry["source"].get<std::string>());
    const Template* const found = TemplateOfDigest(entry["sha256"].get<std::string>());
    ASSERT_NE(found, nullptr);
    EXPECT_EQ(found->name, entry["name"].get<std::string>());
    ++published;
  }
  EXPECT_EQ(published, 12);
  const std::string chatml =
      "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] "
      "+ '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ "
      "'<|im_start|>assistant\n' }}{% endif %}";
  ASSERT_NE(RecogniseTemplate(chatml), nullptr);
  EXPECT_EQ(RecogniseTemplate(chatml)->name, "chatml");
  EXPECT_EQ(RecogniseTemplate("\n " + chatml + "\n\n"), RecogniseTemplate(chatml));
  EXPECT_EQ(RecogniseTemplate(chatml + "{{ eos_token }}"), nullptr);
  EXPECT_EQ(RecogniseTemplate(""), nullptr);
}

TEST(Template, WhatATemplateLacksIsNamed) {
  const auto fault = [](const char* name, const char* line) {
    const auto conversation = ReadConversation(line, Format::kMessages, "");
    EXPECT_TRUE(conversation.ok()) << conversation.status();
    const auto rendered = FindTemplate(name)->render(*conversation, {});
    return std::string(rendered.status().message());
  };
  const char* const system =
      R"({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"},
          {"role": "assistant", "content": "a"}]})";
  EXPECT_THAT(fault("gemma", system), HasSubstr("gemma has no system message; put its text"));
  EXPECT_THAT(fault("mistral", system), HasSubstr("mistral leaves a system message out"));
  const char* const call =
      R"({"messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": null,
          "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]},
          {"role": "tool", "content": "t"}]})";
  for (const char* name : {"chatml", "llama2", "llama3", "vicuna", "alpaca", "zephyr", "phi3"}) {
    EXPECT_THAT(fault(name, call),
                HasSubstr(absl::StrCat(name, " has no tool calls; use llama3.1, qwen")));
  }
  EXPECT_THAT(fault("mistral", call), HasSubstr("ids of tool calls of 9 letters and digits; ''"));
  const char* const tools =
      R"({"messages": [{"role": "user", "content": "u"}],
          "tools": [{"type": "function", "function": {"name": "f"}}]})";
  EXPECT_THAT(fault("llama3", tools), HasSubstr("llama3 has no list of tools"));
}

TEST(PythonText, Strip) {
  EXPECT_EQ(Strip(" \t\r\n\v\f a b \x1c\x1f"), "a b");
  EXPECT_EQ(Strip("\u00a0\u3000\u2028é\u205f\u0085"), "é");
  EXPECT_EQ(Strip("\u200b"), "\u200b");  // no white space for Python
  EXPECT_EQ(Strip(" \u00a0 "), "");
  EXPECT_EQ(Strip(""), "");
}

TEST(PythonText, Json) {
  const char* const text = R"({"b": [1, 2.5, true, null, {}], "a": "é\"\n\u0001/"})";
  EXPECT_EQ(PythonJson(Json::parse(text)), text);
  EXPECT_EQ(PythonJson(Json::parse("[]")), "[]");
  EXPECT_EQ(PythonJson(Json::parse(R"({"a": [1, {}], "b": []})"), 2),
            "{\n  \"a\": [\n    1,\n    {}\n  ],\n  \"b\": []\n}");
}

}  // namespace
}  // namespace tercio::data::chat
