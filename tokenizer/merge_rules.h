// The merges of a BPE vocabulary: which two neighbours become which token, and which first.
//
// Thread safety: immutable once filled.
// Errors:        none.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace tercio::tokenizer {

class MergeRules {
 public:
  // If a pair has two rules, the later one counts.
  void Set(int32_t left, int32_t right, uint32_t rank, int32_t merged) {
    rules_[KeyOf(left, right)] = {rank, merged};
  }

  // Merges the neighbours of (*ids)[begin...] until no rule applies: the lowest rank first, of
  // equal ones the leftmost. Time n log n in their number.
  void Apply(size_t begin, std::vector<int32_t>* ids) const;

 private:
  struct Rule {
    uint32_t rank;
    int32_t merged;
  };
  static constexpr Rule kNoRule = {UINT32_MAX, -1};

  static uint64_t KeyOf(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  Rule Find(int32_t left, int32_t right) const {
    const auto found = rules_.find(KeyOf(left, right));
    return found == rules_.end() ? kNoRule : found->second;
  }
  void ApplyToFew(int32_t* ids, size_t* count) const;
  void ApplyToMany(size_t begin, std::vector<int32_t>* ids) const;

  absl::flat_hash_map<uint64_t, Rule> rules_;
};

}  // namespace tercio::tokenizer
