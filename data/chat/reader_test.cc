#include "data/chat/reader.h"

#include <iterator>
#include <random>
#include <utility>

#include "data/chat/template.h"
#include "data/chat/template_names.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::data::chat {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// "user: a | assistant: b"
std::string Summary(const Conversation& conversation) {
  std::string all;
  for (const Message& message : conversation.messages) {
    all += (all.empty() ? "" : " | ") + std::string(NameOf(message.role)) + ": " + message.content;
    for (const ToolCall& call : message.tool_calls) {
      all += "[" + call.id + " " + call.function.dump() + "]";
    }
  }
  return all;
}

std::string Read(std::string_view line, Format format) {
  const auto conversation = ReadConversation(line, format, "\n--\n");
  return conversation.ok() ? Summary(*conversation) : std::string(conversation.status().message());
}

TEST(Reader, Messages) {
  EXPECT_EQ(Read(R"({"id": 7, "messages": [{"role": "developer", "content": "s"},
                     {"role": "user", "content": [{"type": "text", "text": "a"},
                                                  {"type": "text", "text": "\u00e9"}]},
                     {"role": "assistant", "content": "b", "weight": 1}]})",
                 Format::kMessages),
            "system: s | user: aé | assistant: b");
  EXPECT_EQ(Read(R"({"messages": [{"role": "user", "content": "a"},
                     {"role": "assistant", "tool_calls": [
                        {"id": "x", "type": "function",
                         "function": {"name": "f", "arguments": "{\"z\": 1, \"a\": 2}"}},
                        {"function": {"name": "g"}}]},
                     {"role": "tool", "tool_call_id": "x", "content": "3"},
                     {"role": "assistant", "content": "b"}]})",
                 Format::kMessages),
            R"(user: a | assistant: [x {"name":"f","arguments":{"z":1,"a":2}}])"
            R"([ {"name":"g","arguments":{}}] | tool: 3 | assistant: b)");
}

TEST(Reader, ShareGpt) {
  EXPECT_EQ(Read(R"({"conversations": [{"from": "human", "value": "a"},
                                       {"from": "gpt", "value": "b"}], "system": "s"})",
                 Format::kShareGpt),
            "system: s | user: a | assistant: b");
  EXPECT_EQ(Read(R"({"conversations": [{"from": "user", "value": "a"},
                     {"from": "function_call", "value": "{\"name\": \"f\", \"arguments\": {}}"},
                     {"from": "observation", "value": "3"}, {"from": "assistant", "value": "b"}],
                     "tools": ""})",
                 Format::kShareGpt),
            R"(user: a | assistant: [ {"name":"f","arguments":{}}] | tool: 3 | assistant: b)");
}

TEST(Reader, Alpaca) {
  EXPECT_EQ(Read(R"({"instruction": "a", "input": "i", "output": "b"})", Format::kAlpaca),
            "user: a\n--\ni | assistant: b");
  EXPECT_EQ(Read(R"({"instruction": "a", "input": "", "output": "b", "system": "s",
                     "history": [["x", "y"]]})",
                 Format::kAlpaca),
            "system: s | user: x | assistant: y | user: a | assistant: b");
}

TEST(Reader, PromptCompletion) {
  EXPECT_EQ(Read(R"({"prompt": "a", "completion": "b"})", Format::kPromptCompletion),
            "user: a | assistant: b");
  EXPECT_EQ(Read(R"({"prompt": [{"role": "user", "content": "a"}],
                     "completion": [{"role": "assistant", "content": "b"}]})",
                 Format::kPromptCompletion),
            "user: a | assistant: b");
}

TEST(Reader, FormIsThatOfTheLine) {
  const auto form = [](std::string_view line) {
    const auto format = FormatOfLine(line);
    return format.ok() ? std::string(NameOf(*format)) : std::string(format.status().message());
  };
  EXPECT_EQ(form(R"({"messages": []})"), "messages");
  EXPECT_EQ(form(R"({"id": 1, "conversations": []})"), "sharegpt");
  EXPECT_EQ(form(R"({"instruction": "", "output": ""})"), "alpaca");
  EXPECT_EQ(form(R"({"prompt": "", "completion": ""})"), "prompt_completion");
  EXPECT_THAT(form(R"({"text": "a"})"), StartsWith("the object has none of the keys messages"));
  EXPECT_EQ(form("[]"), "the line is no object");
}

TEST(Reader, Faults) {
  const auto messages = [](const std::string& list) {
    return Read("{\"messages\": [" + list + "]}", Format::kMessages);
  };
  const std::string user = R"({"role": "user", "content": "a"})";
  const std::string assistant = R"({"role": "assistant", "content": "b"})";
  EXPECT_EQ(messages(""), "the conversation is empty");
  EXPECT_EQ(messages(assistant),
            "message 1 is assistant's; a conversation begins with the user, or a system message "
            "before it");
  EXPECT_EQ(messages(user + "," + user),
            "message 2 is user's and follows user's; expected the assistant's answer");
  EXPECT_EQ(messages(user + "," + assistant + "," + assistant),
            "message 3 is assistant's and follows assistant's; expected the user's message");
  EXPECT_EQ(messages(user + R"(,{"role": "system", "content": "s"})"),
            "message 2 is system's, which only the first message may be");
  EXPECT_EQ(messages(user + "," + assistant + R"(,{"role": "tool", "content": "s"})"),
            "message 3 is a tool's answer, but the message before it calls no tool");
  EXPECT_EQ(messages(user + R"(,{"role": "bot", "content": "s"})"),
            "message 2 has the role 'bot'; expected system, user, assistant or tool");
  EXPECT_EQ(messages(R"({"role": "user", "content": ""})"), "message 1 (user) has no text");
  EXPECT_EQ(messages(R"({"role": "user"})"), "message 1 has no 'content'");
  EXPECT_EQ(messages(R"({"role": "user", "content": 3})"),
            "message 1 has a content that is no text");
  EXPECT_THAT(messages(R"({"role": "user", "content": [{"type": "image_url", "image_url": "x"}]})"),
              HasSubstr("message 1 has a part that is no text"));
  EXPECT_EQ(messages(user + R"(,{"role": "assistant", "tool_calls": [{"function": {}}]})"),
            "message 2 has a tool call without the name of a function");
  EXPECT_EQ(messages(user + R"(,{"role": "assistant",
                                 "tool_calls": [{"function": {"name": "f", "arguments": "1"}}]})"),
            "message 2 has a tool call whose arguments are no JSON object");
  EXPECT_EQ(Read("{\"messages\": 3}", Format::kMessages),
            "the object has no list under 'messages'");
  EXPECT_EQ(
      Read(R"({"conversations": [{"from": "narrator", "value": "x"}]})", Format::kShareGpt),
      "message 1 is from 'narrator'; expected human, gpt, system, observation or function_call");
  EXPECT_EQ(Read(R"({"conversations": [], "system": "s"})", Format::kShareGpt),
            "the conversation is empty");
  EXPECT_EQ(Read(R"({"instruction": "a"})", Format::kAlpaca), "the object has no 'output'");
  EXPECT_EQ(Read(R"({"instruction": "a", "output": ""})", Format::kAlpaca),
            "message 2 (assistant) has no text");
  EXPECT_EQ(Read(R"({"prompt": 3, "completion": "b"})", Format::kPromptCompletion),
            "the object has no text under 'prompt'");
  EXPECT_THAT(Read("{\"messages\": [}", Format::kMessages), HasSubstr("not valid JSON at byte 15"));
  EXPECT_THAT(Read(std::string(100, '['), Format::kMessages),
              HasSubstr("nested more than 64 deep"));
  EXPECT_THAT(Read("{\"messages\": \"\xff\"}", Format::kMessages), HasSubstr("not valid JSON"));
}

// Whatever a line holds, it is a conversation that every template takes or refuses, or a fault.
TEST(Reader, AnyBytesAreReadOrRefused) {
  const std::pair<Format, std::string> lines[] = {
      {Format::kMessages, R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant",
          "tool_calls": [{"id": "123456789", "function": {"name": "f", "arguments": {"b": [1]}}}]},
          {"role": "tool", "content": "3"}, {"role": "assistant", "content": "b"}],
          "tools": [{"type": "function", "function": {"name": "f"}}]})"},
      {Format::kShareGpt, R"({"conversations": [{"from": "human", "value": "a"},
          {"from": "function_call", "value": "{\"name\": \"f\", \"arguments\": {}}"}]})"},
      {Format::kAlpaca, R"({"instruction": "a", "output": "b", "history": [["x", "y"]]})"},
      {Format::kPromptCompletion, R"({"prompt": "a", "completion": "b"})"},
  };
  const std::string_view pieces[] = {"null", "[]", "{}", "3", "\"", "\\", "}", "]", "\xff", ","};
  std::minstd_rand random(7);
  int read = 0;
  int refused = 0;
  for (int i = 0; i < 4000; ++i) {
    const auto& [format, line] = lines[random() % std::size(lines)];
    std::string changed = line;
    for (auto changes = random() % 3; changes > 0; --changes) {
      const std::string_view piece = pieces[random() % std::size(pieces)];
      changed.replace(random() % changed.size(), random() % 12, piece.data(), piece.size());
    }
    const auto conversation = ReadConversation(changed, format, "\n");
    (conversation.ok() ? read : refused) += 1;
    if (!conversation.ok()) continue;
    for (const std::string_view name : TemplateNames()) {
      const auto rendered = FindTemplate(name)->render(*conversation, {"<s>", "</s>"});
      if (!rendered.ok()) continue;
      for (const TextRange& range : rendered->assistant) {
        EXPECT_LE(range.begin, range.end);
        EXPECT_LE(range.end, rendered->text.size());
      }
    }
  }
  EXPECT_GT(read, 500);
  EXPECT_GT(refused, 500);
}

}  // namespace
}  // namespace tercio::data::chat
