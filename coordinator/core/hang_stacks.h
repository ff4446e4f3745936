// The stacks of the ranks of a run that hangs, for its log. Thousands of ranks wait at the same
// place: equal stacks are kept and reported once, with the ranks that have them. Pure.
//
// Bounds: about 64 MiB while ranks answer (4 KiB of each text beyond that), kMostLines in a report.
// A job's log keeps its newest 20,000 lines, so that a report survives as a whole.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tercio::coordinator {

class HangStacks {
 public:
  static constexpr size_t kMostLines = 4000;

  // Adds a rank's answer; empty: it gave no stacks. Threads may come in any order; their numbers
  // and the addresses of frames make no difference between stacks.
  void Add(int rank, std::string_view stack);
  void Clear() { *this = HangStacks(); }

  // Lines of the log with the ranks that they are of: first those of the culprits (ascending), then
  // one of each other kind, the kind of the most ranks first; last, a line about those omitted.
  std::vector<std::pair<int, std::string>> Report(const std::vector<int>& culprits) const;

  // Bytes of the texts that are kept.
  size_t held_bytes() const { return held_bytes_; }

 private:
  struct Kind {
    int source = 0;  // the rank whose text it is
    std::string text;
    std::vector<int> ranks;
  };
  class Reporter;

  std::map<size_t, Kind> kinds_;  // by digest
  size_t held_bytes_ = 0;
};

}  // namespace tercio::coordinator
