// Texts as Python makes them.
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "data/chat/template.h"

namespace tercio::data::chat {
namespace {

// str.isspace: white space of Unicode, and the separators of ASCII.
bool IsPythonSpace(uint32_t code) {
  return (code >= 0x09 && code <= 0x0d) || (code >= 0x1c && code <= 0x20) || code == 0x85 ||
         code == 0xa0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200a) || code == 0x2028 ||
         code == 0x2029 || code == 0x202f || code == 0x205f || code == 0x3000;
}

// White space has at most three bytes in UTF-8.
struct Character {
  uint32_t code = 0;
  size_t bytes = 1;
};

Character CharacterAt(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) {
    return static_cast<uint32_t>(static_cast<uint8_t>(text[at + i]));
  };
  const size_t left = text.size() - at;
  if (byte(0) < 0x80) return {byte(0), 1};
  if ((byte(0) & 0xe0) == 0xc0 && left >= 2) return {(byte(0) & 0x1f) << 6 | (byte(1) & 0x3f), 2};
  if ((byte(0) & 0xf0) == 0xe0 && left >= 3) {
    return {(byte(0) & 0x0f) << 12 | (byte(1) & 0x3f) << 6 | (byte(2) & 0x3f), 3};
  }
  return {0, 1};
}

size_t StartOfLast(std::string_view text) {
  size_t at = text.size() - 1;
  while (at > 0 && (static_cast<uint8_t>(text[at]) & 0xc0) == 0x80) --at;
  return at;
}

}  // namespace

std::string_view Strip(std::string_view text) {
  while (!text.empty()) {
    const Character first = CharacterAt(text, 0);
    if (!IsPythonSpace(first.code)) break;
    text.remove_prefix(first.bytes);
  }
  while (!text.empty()) {
    const size_t at = StartOfLast(text);
    if (!IsPythonSpace(CharacterAt(text, at).code)) break;
    text = text.substr(0, at);
  }
  return text;
}

namespace {

std::string JsonAt(const Json& value, int indent, int depth) {
  if (!value.is_structured()) return value.dump();
  const bool object = value.is_object();
  const std::string_view ends = object ? "{}" : "[]";
  if (value.empty()) return std::string(ends);
  const auto line = [&](int levels) {
    return indent > 0 ? absl::StrCat("\n", std::string(static_cast<size_t>(indent * levels), ' '))
                      : std::string();
  };
  std::string out(1, ends[0]);
  bool first = true;
  for (const auto& [key, member] : value.items()) {
    if (!first) out += indent > 0 ? "," : ", ";
    first = false;
    absl::StrAppend(&out, line(depth + 1), object ? absl::StrCat(Json(key).dump(), ": ") : "",
                    JsonAt(member, indent, depth + 1));
  }
  return absl::StrCat(out, line(depth), std::string(1, ends[1]));
}

}  // namespace

std::string PythonJson(const Json& value, int indent) { return JsonAt(value, indent, 0); }

}  // namespace tercio::data::chat
