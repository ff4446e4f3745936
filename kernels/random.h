// Counter-based random numbers keyed by logical identity: the same element gets the same number in
// every layout. Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
// SC'11), tested against the known answers published with it.
//
// A key is the two words of SplitMix64(SplitMix64(seed) xor stream); the stream is
// kInitializationStream or the number of the step. A counter has four words, and its four outputs
// serve four neighbouring columns, channels or keys, 4c .. 4c + 3:
//
//   initialisation  {row low, column / 4, tensor index, row high}; two Box-Muller pairs, or four
//                   uniform values
//   dropout         {channel / 4, position, sequence, site | layer << 4}
//   attention       {key / 4, query, sequence, kSiteAttention | layer << 4 | head << 16}
//
// "sequence" counts within the global batch. Limits that follow: layers < 4,096, heads < 65,536,
// sequences of a global batch < 2^32.
#pragma once

#include <array>
#include <cstdint>

namespace tercio::kernels {

inline constexpr uint32_t kSiteEmbedding = 0;
inline constexpr uint32_t kSiteAttention = 1;
inline constexpr uint32_t kSiteAttentionOutput = 2;
inline constexpr uint32_t kSiteMlpOutput = 3;
inline constexpr uint32_t kSitePooler = 4;
inline constexpr uint32_t kSiteCrossAttention = 5;
inline constexpr uint32_t kSiteCrossAttentionOutput = 6;

// Inputs of adapters are dropped with a seed of their own (AdapterSeed), so that their sites, one
// for each part of a layer's products, share no bits with those above.
inline constexpr uint32_t kAdapterSiteAttention = 0;       // query, key, value, output
inline constexpr uint32_t kAdapterSiteMlp = 4;             // gate, up, down
inline constexpr uint32_t kAdapterSiteCrossAttention = 7;  // query, key, value, output

inline constexpr uint64_t kInitializationStream = ~uint64_t{0};

using PhiloxKey = std::array<uint32_t, 2>;
using PhiloxBlock = std::array<uint32_t, 4>;

// constexpr, so that kernels of a GPU may call it.
constexpr PhiloxBlock Philox(PhiloxKey key, PhiloxBlock counter) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * counter[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(p1),
               static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(p0)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

inline uint64_t SplitMix64(uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

inline uint64_t AdapterSeed(uint64_t seed) { return SplitMix64(seed ^ 0x61646170746572ull); }

inline PhiloxKey MakeKey(uint64_t seed, uint64_t stream) {
  const uint64_t mixed = SplitMix64(SplitMix64(seed) ^ stream);
  return {static_cast<uint32_t>(mixed), static_cast<uint32_t>(mixed >> 32)};
}

// An element is kept if its 32 random bits are at least this.
inline uint32_t DropThreshold(float probability) {
  const double scaled = static_cast<double>(probability) * 4294967296.0;
  return scaled >= 4294967295.0 ? 0xFFFFFFFFu : static_cast<uint32_t>(scaled);
}

// `count` normal values with mean 0 for row `row`, columns [column_begin, column_begin + count) of
// a tensor.
struct NormalRowArgs {
  uint64_t seed;
  uint32_t tensor;
  int64_t row;
  int64_t column_begin, count;
  float standard_deviation;
  float* out;  // (count)
};
void NormalRow(const NormalRowArgs& args);

// Likewise `count` values that are uniform in [-bound, bound).
struct UniformRowArgs {
  uint64_t seed;
  uint32_t tensor;
  int64_t row;
  int64_t column_begin, count;
  float bound;
  float* out;  // (count)
};
void UniformRow(const UniformRowArgs& args);

}  // namespace tercio::kernels
