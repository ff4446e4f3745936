#include "checkpoint/torch/crc32.h"

#include <array>
#include <cstddef>

namespace tercio::checkpoint {
namespace {

constexpr uint32_t kPolynomial = 0xedb88320u;  // bits in the order of the archive, lowest first
constexpr size_t kStride = 8;

using CrcTables = std::array<std::array<uint32_t, 256>, kStride>;

// Table k advances a byte by k further bytes, so that eight bytes need eight lookups and no loop
// over bits.
constexpr CrcTables MakeCrcTables() {
  CrcTables tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1u) != 0 ? kPolynomial : 0u);
    tables[0][byte] = crc;
  }
  for (size_t k = 1; k < kStride; ++k) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint32_t before = tables[k - 1][byte];
      tables[k][byte] = (before >> 8) ^ tables[0][before & 255u];
    }
  }
  return tables;
}

constexpr CrcTables kCrcTables = MakeCrcTables();

uint32_t ByteAt(std::string_view bytes, size_t at) {
  return static_cast<uint32_t>(static_cast<unsigned char>(bytes[at]));
}

}  // namespace

uint32_t Crc32(uint32_t crc, std::string_view bytes) {
  crc = ~crc;
  size_t at = 0;
  for (; at + kStride <= bytes.size(); at += kStride) {
    uint32_t next = 0;
    for (size_t i = 0; i < kStride; ++i) {
      const uint32_t mixed = ByteAt(bytes, at + i) ^ (i < 4 ? (crc >> (8 * i)) & 255u : 0u);
      next ^= kCrcTables[kStride - 1 - i][mixed];
    }
    crc = next;
  }
  for (; at < bytes.size(); ++at)
    crc = (crc >> 8) ^ kCrcTables[0][(crc ^ ByteAt(bytes, at)) & 255u];
  return ~crc;
}

}  // namespace tercio::checkpoint
