#include "common/utf8.h"

namespace tercio {
namespace {

constexpr uint32_t kCodePoints = 0x110000;
constexpr uint32_t kReplacement = 0xFFFD;

}  // namespace

CodePoint DecodeUtf8(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(at);
  if (first < 0x80) return {first, 1, true};
  // The number of leading ones gives the length (RFC 3629).
  const uint32_t more = first >> 5 == 6 ? 1 : first >> 4 == 14 ? 2 : first >> 3 == 30 ? 3 : 0;
  // Text may end within a character.
  if (more == 0 || text.size() - at <= more) return {kReplacement, 1, false};
  uint32_t code = first & (0x3F >> more);
  for (uint32_t k = 1; k <= more; ++k) {
    const uint8_t next = byte(at + k);
    // Only the first byte is skipped, so that the next character is not lost.
    if (next >> 6 != 2) return {kReplacement, 1, false};
    code = code << 6 | (next & 0x3F);
  }
  // A longer form than needed could hide characters from checks.
  constexpr uint32_t kSmallest[] = {0, 0x80, 0x800, 0x10000};
  if (code < kSmallest[more] || code >= kCodePoints || (code >= 0xD800 && code <= 0xDFFF)) {
    return {kReplacement, 1, false};
  }
  return {code, more + 1, true};
}

CodePoint DecodeUtf8Before(std::string_view text, size_t end) {
  // A character has four bytes at most.
  for (size_t length = 1; length <= 4 && length <= end; ++length) {
    const CodePoint point = DecodeUtf8(text.substr(0, end), end - length);
    // The length must fit as well, or the tail of another character would do.
    if (point.valid && point.length == length) return point;
  }
  return {kReplacement, 1, false};
}

bool IsUtf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const CodePoint point = DecodeUtf8(text, i);
    if (!point.valid) return false;
    i += point.length;
  }
  return true;
}

bool IsPrintable(const CodePoint& point) {
  const auto within = [&](uint32_t first, uint32_t last) {
    return point.code >= first && point.code <= last;
  };
  const bool control = point.code < 0x20 || within(0x7f, 0x9f);
  // Unicode's Bidi_Control.
  const bool turns = point.code == 0x61c || within(0x200e, 0x200f) || within(0x202a, 0x202e) ||
                     // These turn the direction of text, and let it look like another.
                     within(0x2066, 0x2069);
  return point.valid && !control && !turns;
}

std::string ForDisplay(std::string_view text, std::string_view kept) {
  std::string shown;
  shown.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const CodePoint point = DecodeUtf8(text, at);
    if (IsPrintable(point) || (point.valid && kept.find(text[at]) != kept.npos)) {
      shown.append(text.substr(at, point.length));
    } else {
      // One sign for each byte shows that something was there.
      shown.push_back('?');
    }
    at += point.length;
  }
  return shown;
}

void AppendUtf8(uint32_t code, std::string* out) {
  const auto add = [out](uint32_t byte) { out->push_back(static_cast<char>(byte)); };
  if (code < 0x80) {
    add(code);
  } else if (code < 0x800) {
    add(0xC0 | code >> 6);
    add(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    add(0xE0 | code >> 12);
    add(0x80 | (code >> 6 & 0x3F));
    add(0x80 | (code & 0x3F));
  } else {
    add(0xF0 | code >> 18);
    add(0x80 | (code >> 12 & 0x3F));
    add(0x80 | (code >> 6 & 0x3F));
    add(0x80 | (code & 0x3F));
  }
}

}  // namespace tercio
