#include "cli/chat_preview.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::cli {
namespace {

// The bytes of a text, of which those under '^' count.
data::Sample SampleOf(const std::string& text, const std::string& marks, int64_t context) {
  data::Sample sample(context);
  sample.targets.assign(sample.targets.size(), data::kNoTarget);
  sample.length = static_cast<int32_t>(text.size()) - 1;
  for (size_t i = 0; i + 1 < text.size(); ++i) {
    sample.inputs[i] = static_cast<uint8_t>(text[i]);
    if (marks[i + 1] == '^') sample.targets[i] = static_cast<uint8_t>(text[i + 1]);
  }
  return sample;
}

std::vector<PreviewToken> Tokens(const std::string& text, const std::string& marks) {
  return PreviewTokens(SampleOf(text, marks, 20), tokenizer::Tokenizer::Bytes()).value();
}

TEST(ChatPreview, MarksWhatCounts) {
  const auto tokens = Tokens("Q: a\x1b\nA: é. Q",
                             "......"
                             "..."
                             "^^^....");
  EXPECT_EQ(PreviewText(tokens, CountedMarks::kBrackets), "Q: a?\nA: [[é.]] ");
  EXPECT_EQ(PreviewText(tokens, CountedMarks::kColours), "Q: a?\nA: \x1b[32mé.\x1b[0m ");
  EXPECT_EQ(CountedTokens(tokens), 3);
}

TEST(ChatPreview, TheLastTokenIsThereIfItCounts) {
  EXPECT_EQ(PreviewText(Tokens("ab!", "..^"), CountedMarks::kBrackets), "ab[[!]]");
  EXPECT_EQ(PreviewText(Tokens("ab!", ".^."), CountedMarks::kBrackets), "a[[b]]");
}

TEST(ChatPreview, ConversationsOfASequenceAreShownApart) {
  data::Sample sample(6);  // "ab", of which the last token is only a target, and "!d"
  sample.inputs = {'a', '!', 'd', 0, 0, 0};
  sample.targets = {'b', 'd', data::kNoTarget, data::kNoTarget, data::kNoTarget, data::kNoTarget};
  sample.document_starts = {0, 1, 1, 3, 3, 3};
  sample.length = 3;
  const auto tokens = PreviewTokens(sample, tokenizer::Tokenizer::Bytes()).value();
  EXPECT_EQ(Conversations(tokens), 2);
  EXPECT_EQ(PreviewText(tokens, CountedMarks::kBrackets), "a[[b]]\n--- conversation 2\n![[d]]");
  EXPECT_EQ(PreviewJson(1, {tokens.front(), tokens.back()}, true).dump(),
            R"({"sample":1,"counted":1,"tokens":[)"
            R"({"id":97,"text":"a","counts":false,"conversation":1},)"
            R"({"id":100,"text":"d","counts":true,"conversation":2}]})");
}

TEST(ChatPreview, Json) {
  EXPECT_EQ(PreviewJson(7, Tokens("a!", ".^"), false).dump(),
            R"({"sample":7,"counted":1,"tokens":[{"id":97,"text":"a","counts":false},)"
            R"({"id":33,"text":"!","counts":true}]})");
}

}  // namespace
}  // namespace tercio::cli
