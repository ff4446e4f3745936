// Remembers the ids of words: text repeats itself, and a known word costs one cache line.
//
// Direct-mapped and of a fixed size (2 MiB for each thread that encodes): a word of at most 24
// bytes with at most 8 ids has one slot, and replaces its previous content. The slot names its
// owner, so that all tokenizers of a process share the cache.
//
// Thread safety: one cache for each thread.
// Errors:        none.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "absl/types/span.h"

namespace tercio::tokenizer {

class WordCache {
 public:
  static constexpr size_t kMostBytes = 24;
  static constexpr size_t kMostIds = 8;

  class Entry {
   public:
    // Appends the remembered ids; false if there are none.
    bool Get(std::vector<int32_t>* ids) const {
      if (count_ == 0) return false;
      ids->insert(ids->end(), ids_, ids_ + count_);
      return true;
    }
    void Set(absl::Span<const int32_t> ids) {
      if (ids.size() > kMostIds) return;
      std::memcpy(ids_, ids.data(), ids.size() * sizeof(int32_t));
      count_ = static_cast<uint8_t>(ids.size());
    }

   private:
    friend class WordCache;
    std::array<uint64_t, 3> key_ = {};
    uint32_t owner_ = 0;
    int32_t ids_[kMostIds] = {};
    uint8_t length_ = 0;
    uint8_t count_ = 0;  // 0: empty
  };

  static WordCache& OfThisThread() {
    thread_local WordCache cache;
    return cache;
  }

  // A number for one vocabulary, never used twice.
  static uint32_t NewOwner() {
    static std::atomic<uint32_t> last{0};
    return ++last;
  }

  // The slot of a word, emptied if it was another's; nullptr if the word is too long.
  Entry* Find(std::string_view word, uint32_t owner) {
    if (word.size() > kMostBytes) return nullptr;
    std::array<uint64_t, 3> key = {};
    std::memcpy(key.data(), word.data(), word.size());
    Entry& entry = entries_[PlaceOf(key, word.size(), owner)];
    if (entry.key_ != key || entry.length_ != word.size() || entry.owner_ != owner) {
      entry.key_ = key;
      entry.length_ = static_cast<uint8_t>(word.size());
      entry.owner_ = owner;
      entry.count_ = 0;
    }
    return &entry;
  }

 private:
  static constexpr size_t kBits = 15;

  static size_t PlaceOf(const std::array<uint64_t, 3>& key, size_t length, uint32_t owner) {
    constexpr uint64_t kOdd = 0x9E3779B97F4A7C15;
    uint64_t hash = (key[0] ^ length ^ static_cast<uint64_t>(owner) << 32) * kOdd;
    hash = (hash ^ hash >> 29 ^ key[1]) * kOdd;
    hash = (hash ^ hash >> 31 ^ key[2]) * kOdd;
    return hash >> (64 - kBits);
  }

  std::vector<Entry> entries_ = std::vector<Entry>(size_t{1} << kBits);
};

}  // namespace tercio::tokenizer
