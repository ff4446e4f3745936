#include "plan/state_digest.h"

#include <cstring>

#include "absl/strings/str_format.h"

namespace tercio::plan {
namespace {

// FNV-1a with 64 bits, and the last steps of MurmurHash3, without which its low bits are weak.
uint64_t HashOf(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  hash = (hash ^ (hash >> 33)) * 0xff51afd7ed558ccdu;
  hash = (hash ^ (hash >> 33)) * 0xc4ceb9fe1a85ec53u;
  return hash ^ (hash >> 33);
}

}  // namespace

uint64_t FactorOfTensor(std::string_view tensor) { return HashOf(tensor) | 1; }

uint64_t DigestOfElements(absl::Span<const float> values, int64_t first) {
  constexpr uint32_t kFactor = 0x9e3779b1u;
  uint64_t sum = 0;
  auto k = (2 * static_cast<uint32_t>(first) + 1) * kFactor;
  for (const float value : values) {
    uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof(bits));
    sum += uint64_t{bits} * k;
    k += 2 * kFactor;
  }
  return sum;
}

std::string StateDigestText(uint64_t digest) { return absl::StrFormat("%016x", digest); }

std::optional<uint64_t> ParseStateDigest(std::string_view text) {
  if (text.size() != 16) return std::nullopt;
  uint64_t digest = 0;
  for (const char c : text) {
    const bool is_digit = c >= '0' && c <= '9';
    if (!is_digit && (c < 'a' || c > 'f')) return std::nullopt;
    digest = digest * 16 + static_cast<uint64_t>(is_digit ? c - '0' : c - 'a' + 10);
  }
  return digest;
}

}  // namespace tercio::plan
