#include "coordinator/access/node_patterns.h"

#include <fnmatch.h>

#include <algorithm>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace tercio::coordinator {
namespace {

constexpr size_t kLongestPattern = 64;  // as of a name
// These are the characters of names (CheckName) and the two wildcards.
constexpr char kOtherCharacters[] = "-._@*?";

std::vector<std::string> Split(const std::string& patterns) {
  return absl::StrSplit(patterns, ',');
}

bool IsPattern(const std::string& text) {
  // An empty text passes here and is refused below, where it has neither letter nor digit.
  return text.size() <= kLongestPattern && std::all_of(text.begin(), text.end(), [](char c) {
           return absl::ascii_isalnum(c) ||
                  std::string_view(kOtherCharacters).find(c) != std::string_view::npos;
         });
}

}  // namespace

absl::Status CheckNodePatterns(const std::string& patterns) {
  for (const std::string& pattern : Split(patterns)) {
    if (!IsPattern(pattern)) {
      return absl::InvalidArgumentError(
          absl::StrCat("a pattern of node names must have 1 to ", kLongestPattern,
                       " characters: letters, digits and -._@*?; separate several with commas"));
    }
    // A pattern of wildcards alone would make the restriction empty.
    const bool tells =
        std::any_of(pattern.begin(), pattern.end(), [](char c) { return absl::ascii_isalnum(c); });
    if (!tells) {
      return absl::InvalidArgumentError(
          absl::StrCat("the pattern \"", pattern,
                       "\" matches every node: include letters or digits that your nodes' names "
                       "have in common"));
    }
  }
  return absl::OkStatus();
}

bool FitsNodePatterns(const std::string& patterns, const std::string& node) {
  const std::vector<std::string> all = Split(patterns);
  return std::any_of(all.begin(), all.end(), [&node](const std::string& pattern) {
    // Without FNM_PATHNAME a * stands for any characters; backslashes are
    // not in the alphabet, so that nothing needs to be escaped.
    return fnmatch(pattern.c_str(), node.c_str(), FNM_NOESCAPE) == 0;
  });
}

}  // namespace tercio::coordinator
