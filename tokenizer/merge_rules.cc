#include "tokenizer/merge_rules.h"

#include <algorithm>
#include <queue>
#include <tuple>

namespace tercio::tokenizer {
namespace {

// Up to this number a scan for the lowest rank is quicker than a heap.
constexpr size_t kFew = 64;

}  // namespace

void MergeRules::Apply(size_t begin, std::vector<int32_t>* ids) const {
  size_t count = ids->size() - begin;
  if (count > kFew) {
    ApplyToMany(begin, ids);
  } else if (count > 1) {
    ApplyToFew(ids->data() + begin, &count);
    ids->resize(begin + count);
  }
}

void MergeRules::ApplyToFew(int32_t* ids, size_t* count) const {
  // Nearly all words are this short, and an array on the stack saves them an allocation.
  Rule rules[kFew];  // rules[i] is of ids[i] and ids[i + 1]
  size_t pairs = *count - 1;
  for (size_t i = 0; i < pairs; ++i) rules[i] = Find(ids[i], ids[i + 1]);
  while (pairs > 0) {
    size_t best = 0;
    for (size_t i = 1; i < pairs; ++i) {
      // A strict comparison keeps the leftmost of pairs with the same rank.
      if (rules[i].rank < rules[best].rank) best = i;
    }
    if (rules[best].rank == kNoRule.rank) break;
    ids[best] = rules[best].merged;
    std::copy(ids + best + 2, ids + pairs + 1, ids + best + 1);
    std::copy(rules + best + 1, rules + pairs, rules + best);
    --pairs;
    // Only the two pairs that hold the new token have other rules now.
    if (best > 0) rules[best - 1] = Find(ids[best - 1], ids[best]);
    if (best < pairs) rules[best] = Find(ids[best], ids[best + 1]);
  }
  *count = pairs + 1;
}

void MergeRules::ApplyToMany(size_t begin, std::vector<int32_t>* ids) const {
  constexpr size_t kNone = SIZE_MAX;
  struct Symbol {
    int32_t id;  // -1: it was merged into the previous one
    size_t previous;
    size_t next;
  };
  struct Candidate {
    Rule rule;
    size_t left;
    int32_t left_id;
    int32_t right_id;
    // With std::greater the queue's top is the smallest: the lowest rank, then the leftmost pair.
    bool operator>(const Candidate& other) const {
      return std::tie(rule.rank, left) > std::tie(other.rule.rank, other.left);
    }
  };
  const size_t count = ids->size() - begin;
  std::vector<Symbol> symbols(count);
  for (size_t i = 0; i < count; ++i) {
    symbols[i] = {(*ids)[begin + i], i == 0 ? kNone : i - 1, i + 1 == count ? kNone : i + 1};
  }
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  const auto offer = [&](size_t left) {
    if (left == kNone || symbols[left].next == kNone) return;
    const int32_t left_id = symbols[left].id;
    // Both ids are kept, since they show later whether the pair still exists.
    const int32_t right_id = symbols[symbols[left].next].id;
    const Rule rule = Find(left_id, right_id);
    if (rule.rank != kNoRule.rank) queue.push({rule, left, left_id, right_id});
  };
  for (size_t i = 0; i < count; ++i) offer(i);
  while (!queue.empty()) {
    const Candidate top = queue.top();
    queue.pop();
    Symbol& left = symbols[top.left];
    // One of the two may have been merged with another meanwhile.
    if (left.id != top.left_id || left.next == kNone || symbols[left.next].id != top.right_id) {
      continue;
    }
    Symbol& right = symbols[left.next];
    left.id = top.rule.merged;
    // This id matches no candidate, so all that begin here are passed over.
    right.id = -1;
    left.next = right.next;
    if (left.next != kNone) symbols[left.next].previous = top.left;
    offer(left.previous);
    offer(top.left);
  }
  ids->resize(begin);
  // The first symbol is never merged into another, so the chain begins there.
  for (size_t i = 0; i != kNone; i = symbols[i].next) ids->push_back(symbols[i].id);
}

}  // namespace tercio::tokenizer
