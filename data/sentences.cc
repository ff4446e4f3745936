#include "data/sentences.h"

#include <string>

#include "tokenizer/unicode.h"

namespace tercio::data {
namespace {

bool IsSpace(uint32_t code) {
  return (tokenizer::CharacterClasses()[code] & tokenizer::kSpace) != 0;
}

// A letter that has a lower case is a capital, in any script that has them.
bool IsUpperCase(uint32_t code) {
  if ((tokenizer::CharacterClasses()[code] & tokenizer::kLetter) == 0) return false;
  std::u32string lower;
  tokenizer::AppendLowercase(code, &lower);
  return lower != std::u32string(1, code);
}

bool EndsSentence(uint32_t code) { return code == '.' || code == '!' || code == '?'; }

// Quotes and brackets behind the mark still belong to the sentence that it ends.
bool Closes(uint32_t code) {
  return code == '"' || code == '\'' || code == ')' || code == ']' || code == 0x2019 ||
         code == 0x201D || code == 0xBB;
}

// The Spanish marks that begin a question or an exclamation count, too.
bool Opens(uint32_t code) {
  return code == '"' || code == '\'' || code == '(' || code == '[' || code == 0x2018 ||
         code == 0x201C || code == 0xAB || code == 0xBF || code == 0xA1;
}

bool BeginsSentence(uint32_t code) {
  return IsUpperCase(code) || (tokenizer::CharacterClasses()[code] & tokenizer::kNumber) != 0 ||
         Opens(code);
}

}  // namespace

std::vector<std::string_view> Sentences(std::string_view text) {
  std::vector<std::string_view> sentences;
  size_t begin = 0;        // begin of the sentence under way
  bool has_words = false;  // it holds more than white space
  bool ended = false;      // by its mark; closing quotes may follow
  for (size_t at = 0; at < text.size();) {
    const CodePoint point = DecodeUtf8(text, at);
    if (!IsSpace(point.code)) {
      ended = EndsSentence(point.code) || (ended && Closes(point.code));
      has_words = true;
      at += point.length;
      continue;
    }
    // The white space goes to the next sentence, so that all of them together are the text.
    const size_t end = at;
    int lines = 0;
    uint32_t next = ' ';
    while (at < text.size()) {
      const CodePoint space = DecodeUtf8(text, at);
      if (!IsSpace(space.code)) {
        next = space.code;
        break;
      }
      lines += space.code == '\n';
      at += space.length;
    }
    // At the end of the text nothing follows, so its white space stays with the last sentence.
    if (has_words && at < text.size() && (lines > 1 || (ended && BeginsSentence(next)))) {
      sentences.push_back(text.substr(begin, end - begin));
      begin = end;
      has_words = false;
    }
    // A mark counts only directly before white space: inside a word or a number it ends nothing.
    ended = false;
  }
  // A text of white space alone has no sentence.
  if (has_words) sentences.push_back(text.substr(begin));
  return sentences;
}

}  // namespace tercio::data
