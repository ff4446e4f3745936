#include "checkpoint/torch/pickle_text.h"

#include <cstdint>

#include "absl/strings/ascii.h"
#include "common/utf8.h"

namespace tercio::checkpoint {
namespace {

// The number that `digits` hexadecimal digits from `at` on make.
std::optional<uint32_t> HexNumber(std::string_view text, size_t at, size_t digits) {
  if (at > text.size() || digits > text.size() - at) return std::nullopt;
  uint32_t number = 0;
  for (const char c : text.substr(at, digits)) {
    if (!absl::ascii_isxdigit(static_cast<unsigned char>(c))) return std::nullopt;
    const char lower = absl::ascii_tolower(static_cast<unsigned char>(c));
    number = number * 16 + static_cast<uint32_t>(lower <= '9' ? lower - '0' : lower - 'a' + 10);
  }
  return number;
}

// The character that an escape of one letter stands for.
std::optional<char> EscapedCharacter(char letter) {
  constexpr std::string_view kLetters = "\\'\"nrtabfv0";
  constexpr std::string_view kCharacters("\\'\"\n\r\t\a\b\f\v\0", 11);
  const size_t at = kLetters.find(letter);
  return at == std::string_view::npos ? std::nullopt : std::optional(kCharacters[at]);
}

}  // namespace

std::optional<std::string> UnquotePythonString(std::string_view line) {
  const char quote = line.empty() ? '\0' : line.front();
  if (line.size() < 2 || (quote != '\'' && quote != '"') || line.back() != quote) {
    return std::nullopt;
  }
  const std::string_view inner = line.substr(1, line.size() - 2);
  std::string bytes;
  for (size_t i = 0; i < inner.size(); ++i) {
    if (inner[i] != '\\') {
      bytes.push_back(inner[i]);
      continue;
    }
    if (++i == inner.size()) return std::nullopt;
    if (inner[i] == 'x') {
      const std::optional<uint32_t> byte = HexNumber(inner, i + 1, 2);
      if (!byte.has_value()) return std::nullopt;
      bytes.push_back(static_cast<char>(*byte));
      i += 2;
    } else if (const std::optional<char> escaped = EscapedCharacter(inner[i])) {
      bytes.push_back(*escaped);
    } else {
      return std::nullopt;
    }
  }
  return bytes;
}

std::optional<std::string> DecodeRawUnicode(std::string_view line) {
  std::string text;
  for (size_t i = 0; i < line.size(); ++i) {
    const bool escape = line[i] == '\\' && i + 1 < line.size();
    const size_t digits = !escape ? 0 : line[i + 1] == 'u' ? 4 : line[i + 1] == 'U' ? 8 : 0;
    if (digits == 0) {
      AppendUtf8(static_cast<uint8_t>(line[i]), &text);
      continue;
    }
    const std::optional<uint32_t> code = HexNumber(line, i + 2, digits);
    if (!code.has_value() || *code > 0x10FFFF) return std::nullopt;
    AppendUtf8(*code, &text);
    i += 1 + digits;
  }
  return text;
}

std::optional<std::string> EncodeLatin1(std::string_view text) {
  std::string bytes;
  for (size_t i = 0; i < text.size();) {
    const CodePoint point = DecodeUtf8(text, i);
    if (!point.valid || point.code > 0xFF) return std::nullopt;
    bytes.push_back(static_cast<char>(point.code));
    i += point.length;
  }
  return bytes;
}

}  // namespace tercio::checkpoint
