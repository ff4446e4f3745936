#include "tokenizer/word_scanner.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "tokenizer/unicode.h"

namespace tercio::tokenizer {
namespace {

// The pattern is compared as text: another one, however similar, may cut words elsewhere.
constexpr std::string_view kLlama3Regex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr uint8_t kWordClasses = kLetter | kNumber | kSpace;

// Text is mostly ASCII, and this table stays in the nearest cache, unlike the 1.1 MB of all
// classes.
constexpr std::array<uint8_t, 128> MakeAsciiClasses() {
  std::array<uint8_t, 128> classes = {};
  for (int c = 0; c < 128; ++c) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    const bool space = c == ' ' || (c >= 9 && c <= 13);
    classes[static_cast<size_t>(c)] = letter                 ? kLetter
                                      : c >= '0' && c <= '9' ? kNumber
                                      : space                ? kSpace
                                                             : 0;
  }
  return classes;
}
constexpr std::array<uint8_t, 128> kAscii = MakeAsciiClasses();

struct Character {
  uint8_t kind;     // kLetter, kNumber, kSpace or 0
  uint32_t length;  // 0: the end of the text
};

class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text), classes_(CharacterClasses()) {}

  Character At(size_t at) const {
    if (at >= text_.size()) return {0, 0};
    const auto byte = static_cast<uint8_t>(text_[at]);
    if (byte < 0x80) return {kAscii[byte], 1};
    const CodePoint point = DecodeUtf8(text_, at);
    const uint8_t kind = classes_[point.code] & kWordClasses;
    return {point.valid ? kind : uint8_t{0}, point.length};
  }

  size_t RunEnd(size_t at, uint8_t kind) const {
    for (Character next = At(at); next.length != 0 && next.kind == kind; next = At(at)) {
      at += next.length;
    }
    return at;
  }

  // The end of a run of white space without its last character if something follows it, since that
  // character goes with the next word or stands alone: \s+(?!\S)|\s+
  size_t SpacesEnd(size_t at) const {
    size_t last = at;
    size_t end = at;
    for (Character next = At(end); next.length != 0 && next.kind == kSpace; next = At(end)) {
      last = end;
      end += next.length;
    }
    return end == text_.size() || last == at ? end : last;
  }

  bool IsLineEnd(size_t at) const {
    return at < text_.size() && (text_[at] == '\r' || text_[at] == '\n');
  }

  // The end of 's 't 're 've 'm 'll 'd at `at`, or `at`.
  size_t ContractionEnd(size_t at, bool any_case) const {
    if (text_[at] != '\'' || at + 1 >= text_.size()) return at;
    const auto lower = [&](size_t i) {
      const char c = i < text_.size() ? text_[i] : '\0';
      return any_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    };
    const char first = lower(at + 1);
    const char second = lower(at + 2);
    if (first == 's' || first == 't' || first == 'm' || first == 'd') return at + 2;
    if ((first == 'r' || first == 'v') && second == 'e') return at + 3;
    if (first == 'l' && second == 'l') return at + 3;
    // In a comparison without case the long s is an s.
    if (any_case && text_.substr(at + 1, 2) == "\u017f") return at + 3;
    return at;
  }

  size_t Gpt2End(size_t at) const {
    if (const size_t end = ContractionEnd(at, /*any_case=*/false); end != at) return end;
    const size_t begin = text_[at] == ' ' && At(at + 1).length != 0 ? at + 1 : at;
    const Character first = At(begin);
    // White space that no word takes is a word itself, and the space before it belongs to it.
    if (first.kind == kSpace) return SpacesEnd(at);
    return RunEnd(begin + first.length, first.kind);
  }

  size_t Llama3End(size_t at) const {
    // The alternatives of the expression are tried in its order, and the first that matches counts.
    if (const size_t end = ContractionEnd(at, /*any_case=*/true); end != at) return end;
    const Character first = At(at);
    const Character second = At(at + first.length);
    if (first.kind == kLetter ||
        (first.kind != kNumber && !IsLineEnd(at) && second.length != 0 && second.kind == kLetter)) {
      return RunEnd(at + first.length, kLetter);
    }
    if (first.kind == kNumber) {
      size_t end = at + first.length;
      for (int more = 0; more < 2 && At(end).kind == kNumber; ++more) end += At(end).length;
      return end;
    }
    if (first.kind == 0 || (text_[at] == ' ' && second.length != 0 && second.kind == 0)) {
      size_t end = RunEnd(at + first.length, 0);
      while (IsLineEnd(end)) ++end;
      return end;
    }
    // The run of white space is given back to its last line end: \s*[\r\n]+ takes all before it.
    const size_t spaces_end = RunEnd(at, kSpace);
    for (size_t end = spaces_end; end > at; --end) {
      if (IsLineEnd(end - 1)) return end;
    }
    return SpacesEnd(at);
  }

 private:
  const std::string_view text_;
  const uint8_t* const classes_;
};

}  // namespace

std::optional<WordPattern> WordPatternNamed(std::string_view name) {
  if (name == NameOf(WordPattern::kGpt2)) return WordPattern::kGpt2;
  if (name == NameOf(WordPattern::kLlama3)) return WordPattern::kLlama3;
  return std::nullopt;
}

std::optional<WordPattern> WordPatternOfRegex(std::string_view regex) {
  if (regex == kLlama3Regex) return WordPattern::kLlama3;
  return std::nullopt;
}

std::string_view NameOf(WordPattern pattern) {
  return pattern == WordPattern::kGpt2 ? "gpt2" : "llama3";
}

size_t WordEnd(WordPattern pattern, std::string_view text, size_t at) {
  const Scanner scanner(text);
  return pattern == WordPattern::kGpt2 ? scanner.Gpt2End(at) : scanner.Llama3End(at);
}

// GPT-2's words never go from another character to white space, and a word that ends with another
// character has not looked further. Llama 3's do so only at line ends after punctuation; after a
// line end that another character follows they always stop, since line ends are the last that a
// word takes, as many of them as there are, and nothing but letters follows the first character of
// a word that is not a line end.
bool IsWordBorder(WordPattern pattern, std::string_view text, size_t at) {
  const char next = text[at];
  const auto is_space = [](const CodePoint& point) {
    return point.valid && (CharacterClasses()[point.code] & kSpace) != 0;
  };
  if (pattern == WordPattern::kGpt2) {
    return (next == ' ' || next == '\n') && !is_space(DecodeUtf8Before(text, at));
  }
  if (next == ' ') return !is_space(DecodeUtf8Before(text, at));
  return text[at - 1] == '\n' && !is_space(DecodeUtf8(text, at));
}

}  // namespace tercio::tokenizer
