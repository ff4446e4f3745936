// One line of a .jsonl corpus: an object whose member `key` holds the document's text; other
// members are read over. Nothing but that text is kept in memory, however the line is nested.
//
// Pure; safe from any thread.
// Errors: INVALID_ARGUMENT that says what is wrong with the line; the caller knows file and number.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace tercio::data {

// The text, as UTF-8, escapes resolved. The last one counts when the key is given twice.
absl::StatusOr<std::string> TextOfJsonLine(std::string_view line, std::string_view key);

// Nothing but spaces: such a line holds no document.
bool IsBlank(std::string_view line);

}  // namespace tercio::data
