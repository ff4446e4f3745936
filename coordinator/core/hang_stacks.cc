#include "coordinator/core/hang_stacks.h"

#include <algorithm>
#include <functional>
#include <set>

#include "absl/strings/str_cat.h"
#include "coordinator/core/diagnosis.h"

namespace tercio::coordinator {
namespace {

// The bounds keep the report below kMostLines and the memory small, whatever
// ranks send: ten thousand of them may answer with megabytes of text each.
constexpr size_t kMostHeldBytes = size_t{64} << 20;
constexpr size_t kCutBytes = 4 << 10;
constexpr size_t kMostLinesOfOne = 500;
constexpr size_t kMostKindsOfCulprits = 64;
constexpr size_t kMostOtherKinds = 16;
constexpr size_t kLongestLine = 1000;
constexpr size_t kLongestRanks = 200;

// At most `most` bytes, without half a character at the end.
std::string_view Cut(std::string_view text, size_t most) {
  if (text.size() <= most) return text;
  // Bytes 10xxxxxx continue a character of UTF-8: the cut moves back to where one begins.
  while (most > 0 && (static_cast<unsigned char>(text[most]) & 0xC0) == 0x80) --most;
  return text.substr(0, most);
}

// Calls `body` with each line that is not empty, until it returns false.
template <typename Body>
void ForEachLine(std::string_view text, const Body& body) {
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    if (!line.empty() && !body(line)) return;
    text.remove_prefix(std::min(text.size(), line.size() + 1));
  }
}

// "  0x7f12 Name" without the address, which differs in every process.
std::string_view WithoutAddress(std::string_view frame) {
  // Addresses differ between processes by address space randomisation; names of frames do not.
  frame.remove_prefix(std::min(frame.find_first_not_of(' '), frame.size()));
  if (!frame.starts_with("0x")) return frame;
  const size_t space = frame.find(' ');
  return space == std::string_view::npos ? std::string_view() : frame.substr(space + 1);
}

// Equal for stacks with the same frames. Pools have threads in any number: each kind counts once.
size_t DigestOf(std::string_view stack) {
  std::set<std::string> threads;
  std::string thread;
  ForEachLine(stack, [&](std::string_view line) {
    if (line.starts_with("thread ")) {
      threads.insert(std::move(thread));
      // "thread 12 (name)"
      thread = std::string(line.substr(std::min(line.find('('), line.size())));
    } else {
      (thread += '\n') += WithoutAddress(line);
    }
    // Threads are in a set, so that their order and their number make no difference.
    return true;
  });
  threads.insert(std::move(thread));
  std::string all;
  for (const std::string& one : threads) absl::StrAppend(&all, one, "\n\n");
  // The digest needs no strength against attackers: a collision merges two kinds in a text.
  return std::hash<std::string>()(all);
}

std::string NameBriefly(const std::vector<int>& ranks) {
  const std::string names = NameRanks(ranks);
  if (names.size() <= kLongestRanks) return names;
  return absl::StrCat(names.substr(0, names.rfind(',', kLongestRanks)), ", ...");
}

}  // namespace

void HangStacks::Add(int rank, std::string_view stack) {
  if (stack.empty()) return;
  Kind& kind = kinds_[DigestOf(stack)];
  // The first rank of a kind gives the text; the others only their numbers.
  if (kind.ranks.empty()) {
    kind.source = rank;
    kind.text = std::string(held_bytes_ < kMostHeldBytes ? stack : Cut(stack, kCutBytes));
    held_bytes_ += kind.text.size();
  }
  kind.ranks.push_back(rank);
}

class HangStacks::Reporter {
 public:
  // False when there is no room for more.
  bool Add(const Kind& kind, int of) {
    // There is room for a whole stack with its heading and the ellipsis,
    // or it is left out, so that the report's end cuts none.
    if (lines_.size() + kMostLinesOfOne + 2 > kMostLines) return false;
    std::vector<int> ranks = kind.ranks;
    std::sort(ranks.begin(), ranks.end());
    if (ranks.size() > 1) {
      AddLine(of, absl::StrCat("the same apart from addresses in ", ranks.size(), " ranks: ",
                               NameBriefly(ranks), "; addresses are those of rank ", kind.source));
    }
    const size_t end = lines_.size() + kMostLinesOfOne;
    ForEachLine(kind.text, [&](std::string_view line) {
      // One line more than the bound is the ellipsis, which says that lines are missing.
      AddLine(of, lines_.size() == end ? "..." : Cut(line, kLongestLine));
      return lines_.size() <= end;
    });
    return true;
  }

  void LeaveOut(const Kind& kind) {
    ++kinds_left_out_;
    ranks_left_out_ += kind.ranks.size();
    first_left_out_ = kind.source;
  }

  std::vector<std::pair<int, std::string>> Finish() {
    if (kinds_left_out_ > 0) {
      AddLine(first_left_out_, absl::StrCat("omitted: stacks of ", kinds_left_out_,
                                            " other kinds, from ", ranks_left_out_, " ranks"));
    }
    return std::move(lines_);
  }

 private:
  void AddLine(int rank, std::string_view line) {
    lines_.emplace_back(rank, std::string("stack: ") += line);
  }

  std::vector<std::pair<int, std::string>> lines_;
  size_t kinds_left_out_ = 0;
  size_t ranks_left_out_ = 0;
  int first_left_out_ = 0;
};

std::vector<std::pair<int, std::string>> HangStacks::Report(
    const std::vector<int>& culprits) const {
  const std::set<int> guilty(culprits.begin(), culprits.end());
  std::vector<std::pair<int, const Kind*>> of_culprits;  // with the first culprit of each
  std::vector<const Kind*> others;
  for (const auto& [digest, kind] : kinds_) {
    int first = -1;
    for (const int rank : kind.ranks) {
      if (guilty.contains(rank) && (first < 0 || rank < first)) first = rank;
    }
    if (first >= 0) {
      of_culprits.emplace_back(first, &kind);
    } else {
      others.push_back(&kind);
    }
  }
  std::sort(of_culprits.begin(), of_culprits.end());
  std::sort(others.begin(), others.end(), [](const Kind* a, const Kind* b) {
    return a->ranks.size() != b->ranks.size() ? a->ranks.size() > b->ranks.size()
                                              : a->source < b->source;
  });
  Reporter reporter;
  for (size_t i = 0; i < of_culprits.size(); ++i) {
    const auto& [culprit, kind] = of_culprits[i];
    if (i >= kMostKindsOfCulprits || !reporter.Add(*kind, culprit)) reporter.LeaveOut(*kind);
  }
  for (size_t i = 0; i < others.size(); ++i) {
    if (i >= kMostOtherKinds || !reporter.Add(*others[i], others[i]->source)) {
      reporter.LeaveOut(*others[i]);
    }
  }
  return reporter.Finish();
}

}  // namespace tercio::coordinator
