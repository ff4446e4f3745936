// The properties of code points that tokenizers need. The classes are those of the Hugging Face
// `tokenizers` library (make_unicode_tables.py explains why), so that token ids agree.
//
// Thread safety: pure functions; the class table (1.1 MB) is built at the first use.
// Errors:        none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "common/utf8.h"

namespace tercio::tokenizer {

// Bits of one entry of CharacterClasses().
inline constexpr uint8_t kLetter = 1;           // \p{L}
inline constexpr uint8_t kNumber = 2;           // \p{N}
inline constexpr uint8_t kSpace = 4;            // \s
inline constexpr uint8_t kBertPunctuation = 8;  // BERT makes it a word of its own
inline constexpr uint8_t kBertDropped = 16;     // BERT removes it: control characters, U+FFFD
inline constexpr uint8_t kMark = 32;            // a nonspacing mark
inline constexpr uint8_t kHasDecomposition = 64;
inline constexpr uint8_t kReorders = 128;  // its canonical combining class is not 0

// The classes of all 0x110000 code points, by code.
const uint8_t* CharacterClasses();

// The lower case of one character without context; U+0130 has two code points.
void AppendLowercase(uint32_t code, std::u32string* out);

// Canonical decomposition and order (NFD).
std::u32string Decompose(const std::u32string& text);

}  // namespace tercio::tokenizer
