// Tables of texts whose first line names the columns: .csv as RFC 4180 has it, and .tsv as GLUE
// publishes it.
//
// A .csv field in double quotes may hold commas, line breaks and doubled quotes, each of which
// stands for one; quotes elsewhere are characters like any other. A .tsv field is what lies between
// two tabs, and quotes in it mean nothing. Lines end with LF or CRLF. A line without any character
// is no record.
//
// Pure; safe from any thread. Errors describe the fault of a record; the caller knows file and
// line.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace tercio::data {

enum class TableKind { kCsv, kTsv };

// By the ending of the name; none: the file is no table.
std::optional<TableKind> TableKindOf(std::string_view path);

struct Record {
  std::string_view text;  // without the end of its last line
  size_t bytes = 0;       // with it
  int64_t lines = 1;
};

// The record at the beginning of `rest`. One whose quotes are not closed has the rest of the file.
// REQUIRES: !rest.empty().
Record FirstRecord(std::string_view rest, TableKind kind);

// INVALID_ARGUMENT: text behind the closing quote of a field. OUT_OF_RANGE: a field whose quotes
// are not closed, so that the ends of this record and of all that follow are not known.
absl::StatusOr<std::vector<std::string>> FieldsOf(std::string_view record, TableKind kind);

// The bytes of a UTF-8 byte order mark at the start of a file; 0 where there is none.
size_t ByteOrderMark(std::string_view content);

// The place of a column. INVALID_ARGUMENT: the header does not have it, or twice; the message lists
// the columns. `setting` is the key that names the column, for the message.
absl::StatusOr<size_t> FindColumn(const std::vector<std::string>& header, const std::string& name,
                                  std::string_view setting);

}  // namespace tercio::data
