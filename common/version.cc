#include "common/version.h"

#include <cstdlib>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace tercio {

// Weak: overridden by a program's own definition, if it has one.
__attribute__((weak)) extern const char* const kVersion = "0.1.0";
__attribute__((weak)) extern const char* const kCommit = "unknown";

namespace {

// (major, minor).
std::optional<std::pair<int, int>> Parse(const std::string& version) {
  // The patch level is left out: such versions always fit together.
  const std::vector<std::string> parts = absl::StrSplit(version, '.');
  std::pair<int, int> parsed;
  if (parts.size() < 2 || !absl::SimpleAtoi(parts[0], &parsed.first) ||
      !absl::SimpleAtoi(parts[1], &parsed.second)) {
    return std::nullopt;
  }
  return parsed;
}

}  // namespace

absl::Status CheckVersions(const std::string& theirs_name, const std::string& theirs,
                           const std::string& ours_name, const std::string& ours) {
  const auto other = Parse(theirs);
  const auto own = Parse(ours);
  // A cluster is upgraded one daemon at a time, so that neighbours have to fit.
  const bool together = other.has_value() && own.has_value() && other->first == own->first &&
                        std::abs(other->second - own->second) <= 1;
  if (together) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(theirs_name, " runs Tercio ", theirs.empty() ? "of an unknown version" : theirs,
                   " and ", ours_name, " ", ours,
                   ": minor versions may be one apart, major versions must be equal; upgrade the "
                   "older one"));
}

}  // namespace tercio
