#include "data/delimited.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/nearest.h"
#include "common/utf8.h"

namespace tercio::data {
namespace {

// A file without a header has a line of data there, which may be long.
constexpr size_t kMostColumnsShown = 20;
constexpr size_t kMostNameShown = 40;

// FieldsOf follows the same rules: a quote opens a field only at its start.
size_t EndOfCsvRecord(std::string_view rest) {
  bool quoted = false;
  bool starts_field = true;
  for (size_t i = 0; i < rest.size(); ++i) {
    const char c = rest[i];
    if (quoted) {
      // A doubled quote closes the field and opens it again, which changes nothing here.
      quoted = c != '"';
      starts_field = !quoted && i + 1 < rest.size() && rest[i + 1] == '"';
      continue;
    }
    if (c == '\n') return i;
    quoted = c == '"' && starts_field;
    starts_field = c == ',';
  }
  return rest.size();
}

absl::StatusOr<std::vector<std::string>> CsvFieldsOf(std::string_view record) {
  std::vector<std::string> fields;
  for (size_t i = 0;; ++i) {
    std::string& field = fields.emplace_back();
    if (i < record.size() && record[i] == '"') {
      for (++i;; ++i) {
        if (i >= record.size()) {
          return absl::OutOfRangeError(absl::StrCat(
              "the quotes of field ", fields.size(),
              " are not closed before the end of the file; close them, or double a quote that ",
              "belongs to the text"));
        }
        const bool closes = record[i] == '"' && (i + 1 >= record.size() || record[i + 1] != '"');
        if (closes) break;
        if (record[i] == '"') ++i;
        field += record[i];
      }
      ++i;
      if (i < record.size() && record[i] != ',') {
        return absl::InvalidArgumentError(
            absl::StrCat("field ", fields.size(), " continues behind its closing quote; double ",
                         "each quote that belongs to the text"));
      }
    } else {
      const size_t end = std::min(record.find(',', i), record.size());
      field = record.substr(i, end - i);
      i = end;
    }
    if (i >= record.size()) return fields;
  }
}

std::vector<std::string> TsvFieldsOf(std::string_view record) {
  std::vector<std::string> fields;
  for (size_t begin = 0;;) {
    const size_t end = std::min(record.find('\t', begin), record.size());
    fields.emplace_back(record.substr(begin, end - begin));
    if (end == record.size()) return fields;
    begin = end + 1;
  }
}

std::vector<std::string> Shown(const std::vector<std::string>& header) {
  std::vector<std::string> names;
  for (const std::string& name : header) {
    if (names.size() == kMostColumnsShown) {
      names.push_back(absl::StrCat("and ", header.size() - kMostColumnsShown, " more"));
      break;
    }
    const std::string shown = ForDisplay(name.substr(0, kMostNameShown));
    names.push_back(name.size() > kMostNameShown ? shown + "..." : shown);
  }
  return names;
}

}  // namespace

std::optional<TableKind> TableKindOf(std::string_view path) {
  if (path.ends_with(".csv")) return TableKind::kCsv;
  if (path.ends_with(".tsv")) return TableKind::kTsv;
  return std::nullopt;
}

Record FirstRecord(std::string_view rest, TableKind kind) {
  const size_t end =
      kind == TableKind::kCsv ? EndOfCsvRecord(rest) : std::min(rest.find('\n'), rest.size());
  Record record;
  record.text = rest.substr(0, end);
  record.bytes = end + (end < rest.size() ? 1 : 0);
  record.lines = 1 + std::count(record.text.begin(), record.text.end(), '\n');
  if (record.text.ends_with('\r')) record.text.remove_suffix(1);
  return record;
}

absl::StatusOr<std::vector<std::string>> FieldsOf(std::string_view record, TableKind kind) {
  if (kind == TableKind::kCsv) return CsvFieldsOf(record);
  return TsvFieldsOf(record);
}

size_t ByteOrderMark(std::string_view content) {
  constexpr std::string_view kMark = "\xEF\xBB\xBF";
  return content.starts_with(kMark) ? kMark.size() : 0;
}

absl::StatusOr<size_t> FindColumn(const std::vector<std::string>& header, const std::string& name,
                                  std::string_view setting) {
  const auto found = std::find(header.begin(), header.end(), name);
  if (found == header.end()) {
    const std::vector<std::string> shown = Shown(header);
    return absl::InvalidArgumentError(
        absl::StrCat("the header has no column '", name, "' (", std::string(setting),
                     "); its columns are: ", absl::StrJoin(shown, ", "), DidYouMean(name, shown)));
  }
  if (std::find(found + 1, header.end(), name) != header.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the header names the column '", name, "' twice; rename one of them"));
  }
  return static_cast<size_t>(found - header.begin());
}

}  // namespace tercio::data
