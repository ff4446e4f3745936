// A set of ranks as bits in a protobuf field: rank r is bit r % 8 of byte r / 8.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>

namespace tercio::coordinator {

// REQUIRES: rank >= 0.
inline void AddRank(std::string& set, int rank) {
  const size_t byte = static_cast<size_t>(rank) / 8;
  if (set.size() <= byte) set.resize(byte + 1, '\0');
  set[byte] = static_cast<char>(static_cast<uint8_t>(set[byte]) | (1u << (rank % 8)));
}

inline int CountRanks(const std::string& set) {
  int count = 0;
  for (const char byte : set) count += std::popcount(static_cast<uint8_t>(byte));
  return count;
}

}  // namespace tercio::coordinator
