// A set of ranks, or of nodes by their index, as bits in a protobuf field: r is bit r % 8 of byte
// r / 8.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

namespace tercio::coordinator {

// REQUIRES: rank >= 0.
inline void AddRank(std::string& set, int rank) {
  const size_t byte = static_cast<size_t>(rank) / 8;
  if (set.size() <= byte) set.resize(byte + 1, '\0');
  set[byte] = static_cast<char>(static_cast<uint8_t>(set[byte]) | (1u << (rank % 8)));
}

inline bool HasRank(const std::string& set, int rank) {
  const size_t byte = static_cast<size_t>(rank) / 8;
  return byte < set.size() && (static_cast<uint8_t>(set[byte]) >> (rank % 8) & 1u) != 0;
}

inline int CountRanks(const std::string& set) {
  int count = 0;
  for (size_t i = 0; i < set.size(); i += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, set.data() + i, std::min(sizeof(word), set.size() - i));
    count += std::popcount(word);
  }
  return count;
}

}  // namespace tercio::coordinator
