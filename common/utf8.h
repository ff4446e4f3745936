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
  uint32_t code;    // U+FFFD where not valid
  uint32_t length;  // bytes, at least 1
  bool valid;
};

// Requires: at < text.size().
CodePoint DecodeUtf8(std::string_view text, size_t at);

// The code point that ends before text[end]. Requires: 0 < end <= text.size().
CodePoint DecodeUtf8Before(std::string_view text, size_t end);

bool IsUtf8(std::string_view text);

void AppendUtf8(uint32_t code, std::string* out);

}  // namespace tercio
