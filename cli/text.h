// Text on a terminal: what may be shown, how many columns it takes, tables.
//
// Pure.
#pragma once

#include <string>
#include <vector>

namespace tercio::cli {

// Columns that a terminal uses for UTF-8 text: two for wide letters (Unicode's annex 11), none for
// marks on a letter.
size_t Columns(const std::string& text);

// The longest prefix that takes no more columns.
std::string Clip(const std::string& text, size_t columns);

// With an ellipsis where something was cut.
std::string Shortened(const std::string& text, size_t columns);

// In one line, without what a terminal would act on (ForDisplay of common/utf8.h); tabs stay.
std::string ForTerminal(const std::string& text);

// Bytes that are not UTF-8 become '?'.
std::string Printable(const std::string& text);

// Columns padded to their widest cell, two spaces between; cells as ForTerminal shows them, ends of
// lines as spaces.
std::string Table(const std::vector<std::vector<std::string>>& rows);

}  // namespace tercio::cli
