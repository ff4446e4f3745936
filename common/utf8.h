// UTF-8 (RFC 3629: no overlong forms, no surrogates, at most U+10FFFF).
//
// Pure; safe from any thread.
// Errors: none. A byte that starts no valid sequence is one code point with valid = false.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tercio {

struct CodePoint {
  uint32_t code;    // U+FFFD if not valid
  uint32_t length;  // bytes, at least 1
  bool valid;
};

// Requires: at < text.size().
CodePoint DecodeUtf8(std::string_view text, size_t at);

// The code point that ends before text[end]. Requires: 0 < end <= text.size().
CodePoint DecodeUtf8Before(std::string_view text, size_t end);

bool IsUtf8(std::string_view text);

// Whether the code point can be shown as it is: valid, not a control character (C0, DEL, C1), and
// not one that changes the direction of writing.
bool IsPrintable(const CodePoint& point);

// The text with '?' for each code point that is not printable; control characters in `kept` stay.
std::string ForDisplay(std::string_view text, std::string_view kept = "");

void AppendUtf8(uint32_t code, std::string* out);

}  // namespace tercio
