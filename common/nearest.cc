#include "common/nearest.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "absl/strings/str_cat.h"

namespace tercio {
namespace {

// Longer words were not typed by hand, and may be meant to waste time.
constexpr size_t kLongest = 200;

}  // namespace

int EditDistance(const std::string& a, const std::string& b) {
  // One row of the table is enough, as each needs only the one before.
  std::vector<int> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    int diagonal = row[0];
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const int replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

std::string Nearest(const std::string& word, const std::vector<std::string>& candidates, int most) {
  std::string nearest;
  int least = most;
  for (const std::string& candidate : candidates) {
    // The difference of the lengths is a bound, which saves most comparisons.
    const auto longer = static_cast<int64_t>(candidate.size()) - static_cast<int64_t>(word.size());
    if (std::abs(longer) > least) continue;
    const int distance = EditDistance(word, candidate);
    // The first of equally near ones is kept, so that the answer is always the same.
    if (distance > least || (distance == least && !nearest.empty())) continue;
    least = distance;
    nearest = candidate;
  }
  return nearest;
}

int LikelyDistance(const std::string& word) {
  // Long words may have more mistakes; short ones are soon like any other.
  return word.size() < 3 ? 1 : 2 + static_cast<int>(word.size()) / 8;
}

std::string DidYouMean(const std::string& word, const std::vector<std::string>& candidates) {
  if (word.size() > kLongest) return "";
  const std::string nearest = Nearest(word, candidates, LikelyDistance(word));
  return nearest.empty() ? "" : absl::StrCat("; did you mean '", nearest, "'?");
}

}  // namespace tercio
