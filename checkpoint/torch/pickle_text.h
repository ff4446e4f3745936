// Texts of the oldest pickles: lines of ASCII with escapes, as Python writes its literals.
//
// Pure. Errors: nullopt for what is no such literal.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace tercio::checkpoint {

// 'don\'t', with its quotes: the bytes of a string of Python 2.
std::optional<std::string> UnquotePythonString(std::string_view line);

// A line of Latin-1 in which \uXXXX and \UXXXXXXXX stand for other characters; as UTF-8.
std::optional<std::string> DecodeRawUnicode(std::string_view line);

// Latin-1 that was written as UTF-8, as the bytes that it stands for.
std::optional<std::string> EncodeLatin1(std::string_view text);

}  // namespace tercio::checkpoint
