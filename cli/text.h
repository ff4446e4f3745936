// Text on a terminal: escaping, widths, tables.
//
// Pure.
#pragma once

#include <string>
#include <vector>

namespace tercio::cli {

// Columns that a terminal uses for UTF-8 text: two for wide letters (Unicode's annex 11), none for
// marks on a letter.
size_t Columns(const std::string& text);

// The longest prefix of at most `columns` columns.
std::string Clip(const std::string& text, size_t columns);

// The text, cut to `columns` with an ellipsis if it is longer.
std::string Shortened(const std::string& text, size_t columns);

// The text on one line, without control sequences that a terminal would act on (ForDisplay of
// common/utf8.h); tabs stay.
std::string ForTerminal(const std::string& text);

// Bytes that are not UTF-8 become '?'.
std::string Printable(const std::string& text);

// Columns padded to their widest cell, two spaces between; cells as ForTerminal shows them, ends of
// lines as spaces.
std::string Table(const std::vector<std::vector<std::string>>& rows);

}  // namespace tercio::cli
