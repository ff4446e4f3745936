// A set of byte strings with a value each, walked byte by byte from the root: longest-prefix
// searches of the tokenizers.
//
// Thread safety: immutable once filled.
// Errors:        none; the caller keeps within kMostBytes.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace tercio::tokenizer {

class ByteTrie {
 public:
  static constexpr int32_t kRoot = 0;
  static constexpr int32_t kNone = -1;
  // A child is found by node * 256 + byte in 32 bits.
  static constexpr size_t kMostBytes = (size_t{1} << 24) - 1;

  ByteTrie() { first_.fill(kNone); }

  // False if the key is empty or already present. Requires: value >= 0, and at most kMostBytes
  // bytes in all keys together.
  bool Insert(std::string_view key, int32_t value) {
    if (key.empty()) return false;
    int32_t node = kRoot;
    for (const char c : key) {
      const int32_t next = Step(node, static_cast<uint8_t>(c));
      node = next != kNone ? next : AddChild(node, static_cast<uint8_t>(c));
    }
    int32_t& held = values_[node];
    if (held != kNone) return false;
    held = value;
    return true;
  }

  // The child of a node, or kNone.
  int32_t Step(int32_t node, uint8_t byte) const {
    if (node == kRoot) return first_[byte];
    const auto found = children_.find(static_cast<uint32_t>(node) << 8 | byte);
    return found == children_.end() ? kNone : found->second;
  }

  // The value of the string that ends at a node, or kNone.
  int32_t value(int32_t node) const { return values_[node]; }

  bool empty() const { return values_.size() == 1; }

  struct Match {
    size_t length = 0;  // 0: no key is a prefix
    int32_t value = kNone;
  };
  Match LongestPrefix(std::string_view text) const {
    Match match;
    int32_t node = kRoot;
    for (size_t i = 0; i < text.size(); ++i) {
      node = Step(node, static_cast<uint8_t>(text[i]));
      if (node == kNone) break;
      if (values_[node] != kNone) match = {i + 1, values_[node]};
    }
    return match;
  }

 private:
  int32_t AddChild(int32_t node, uint8_t byte) {
    const auto child = static_cast<int32_t>(values_.size());
    values_.push_back(kNone);
    if (node == kRoot) {
      first_[byte] = child;
    } else {
      children_[static_cast<uint32_t>(node) << 8 | byte] = child;
    }
    return child;
  }

  std::array<int32_t, 256> first_;
  absl::flat_hash_map<uint32_t, int32_t> children_;
  std::vector<int32_t> values_ = {kNone};  // by node
};

}  // namespace tercio::tokenizer
