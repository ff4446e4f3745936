// The order of a sum over the ranks of a group, as a value: which part is added to which, and when.
// Pure.
#pragma once

#include <vector>

namespace tercio::plan {

enum class SumOrder {
  kRanks,  // ((r0 + r1) + r2) + r3
  kTree,   // (r0 + r1) + (r2 + r3); halves differ by at most one rank, the larger one first
};

// Part `from` is added to part `into`.
struct Addition {
  int into;
  int from;
  bool operator==(const Addition&) const = default;
};

// One after the other: the sum of all parts ends in part 0.
using SumTree = std::vector<Addition>;

inline void AddSubtree(int begin, int end, SumTree* tree) {
  if (end - begin < 2) return;
  // Where the number is odd, the first half is the larger one.
  const int middle = begin + (end - begin + 1) / 2;
  AddSubtree(begin, middle, tree);
  AddSubtree(middle, end, tree);
  tree->push_back({begin, middle});
}

inline SumTree SumTreeOf(SumOrder order, int parts) {
  SumTree tree;
  if (order == SumOrder::kTree) {
    // It continues the tree of the lanes (plan/lanes.h): so the number of data ranks does not show
    // in the sum.
    AddSubtree(0, parts, &tree);
    return tree;
  }
  for (int part = 1; part < parts; ++part) tree.push_back({0, part});
  return tree;
}

}  // namespace tercio::plan
