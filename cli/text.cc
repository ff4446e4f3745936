#include "cli/text.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_replace.h"
#include "common/utf8.h"

namespace tercio::cli {
namespace {

using Block = std::pair<uint32_t, uint32_t>;

bool IsIn(uint32_t code, const Block* begin, const Block* end) {
  return std::any_of(begin, end, [code](const Block& block) {
    return code >= block.first && code <= block.second;
  });
}

// The large blocks of Unicode's EastAsianWidth.txt (wide and full width).
constexpr Block kWide[] = {{0x1100, 0x115f},   {0x2e80, 0x303e},   {0x3041, 0xa4cf},
                           {0xac00, 0xd7a3},   {0xf900, 0xfaff},   {0xfe30, 0xfe6f},
                           {0xff00, 0xff60},   {0xffe0, 0xffe6},   {0x1f300, 0x1f64f},
                           {0x1f680, 0x1f6ff}, {0x1f900, 0x1faff}, {0x20000, 0x3fffd}};
// Combining marks, joiners, and choices of a form.
constexpr Block kMarks[] = {{0x300, 0x36f}, {0x200b, 0x200f}, {0x20d0, 0x20ff}, {0xfe00, 0xfe0f}};

size_t ColumnsOf(uint32_t code) {
  // Marks stand on the character before them.
  if (IsIn(code, std::begin(kMarks), std::end(kMarks))) return 0;
  return IsIn(code, std::begin(kWide), std::end(kWide)) ? 2 : 1;
}

}  // namespace

size_t Columns(const std::string& text) {
  size_t columns = 0;
  for (size_t at = 0; at < text.size();) {
    // Invalid bytes count as one column, as they are shown as one sign.
    const CodePoint point = DecodeUtf8(text, at);
    columns += ColumnsOf(point.code);
    at += point.length;
  }
  return columns;
}

std::string Clip(const std::string& text, size_t columns) {
  size_t at = 0;
  for (size_t used = 0; at < text.size();) {
    const CodePoint point = DecodeUtf8(text, at);
    used += ColumnsOf(point.code);
    // A wide character that would stick out is left out as a whole.
    if (used > columns) break;
    at += point.length;
  }
  return text.substr(0, at);
}

std::string Shortened(const std::string& text, size_t columns) {
  // The ellipsis takes one column.
  return Columns(text) <= columns || columns == 0 ? text : Clip(text, columns - 1) + "…";
}

std::string ForTerminal(const std::string& text) { return ForDisplay(text, "\t"); }

std::string Printable(const std::string& text) {
  std::string shown;
  for (size_t at = 0; at < text.size();) {
    const CodePoint point = DecodeUtf8(text, at);
    // A byte that is no character would make JSON or a terminal stumble.
    shown += point.valid ? text.substr(at, point.length) : "?";
    at += point.length;
  }
  return shown;
}

std::string Table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::vector<std::string>> shown = rows;
  std::vector<size_t> widths;
  for (auto& row : shown) {
    // Rows may be of different lengths: a heading between tables has one cell.
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) {
      // A line break would tear the row apart.
      row[i] = ForTerminal(absl::StrReplaceAll(row[i], {{"\n", " "}}));
      widths[i] = std::max(widths[i], Columns(row[i]));
    }
  }
  std::string text;
  for (const auto& row : shown) {
    for (size_t i = 0; i < row.size(); ++i) {
      text += row[i];
      // The last column needs no padding, so that lines have no blanks at their end.
      if (i + 1 < row.size()) text.append(widths[i] - Columns(row[i]) + 2, ' ');
    }
    text += '\n';
  }
  return text;
}

}  // namespace tercio::cli
