// One line of a .jsonl corpus: an object some of whose members are wanted; the others are skipped.
// Only the wanted values are kept in memory, however the line is nested.
//
// Pure; safe from any thread. Errors: INVALID_ARGUMENT describing the fault of the line; the caller
// knows file and number.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace tercio::data {

// Text (as UTF-8, escapes resolved) or a whole number.
using JsonValue = std::variant<std::string, int64_t>;

// The values of `keys`, nullopt for one that is missing or null. If a key is given twice, the last
// one counts. A wanted value of another kind (a list, a number with a fraction) is an error.
absl::StatusOr<std::vector<std::optional<JsonValue>>> MembersOfJsonLine(
    std::string_view line, absl::Span<const std::string> keys);

// The text of `key`, which must be there.
absl::StatusOr<std::string> TextOfJsonLine(std::string_view line, std::string_view key);

// A notice for people about lines that were skipped; `first` names the first one and why.
std::string SkippedLinesNotice(int64_t lines, std::string_view first);

// Whether the line is only spaces: such a line holds no document.
bool IsBlank(std::string_view line);

}  // namespace tercio::data
