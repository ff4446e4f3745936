#include "model/name_pattern.h"

#include <cstddef>

namespace tercio::model {

bool MatchesPattern(std::string_view name, std::string_view pattern) {
  // The position of the last star, and how much of the name it has matched.
  size_t star = std::string_view::npos;
  size_t taken = 0;
  size_t at = 0;
  size_t i = 0;
  // Going back to the last star is enough, since what earlier ones matched can stay as
  // it is: the time is bounded by both lengths multiplied, whatever the pattern.
  while (i < name.size()) {
    if (at < pattern.size() && pattern[at] == '*') {
      star = at++;
      taken = i;
    } else if (at < pattern.size() && pattern[at] == name[i]) {
      ++at;
      ++i;
    } else if (star != std::string_view::npos) {
      at = star + 1;
      i = ++taken;
    } else {
      return false;
    }
  }
  // Stars at the end match nothing.
  while (at < pattern.size() && pattern[at] == '*') ++at;
  return at == pattern.size();
}

}  // namespace tercio::model
