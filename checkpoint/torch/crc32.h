// The checksum of zip archives: CRC-32 with the polynomial of IEEE 802.3. Pure.
#pragma once

#include <cstdint>
#include <string_view>

namespace tercio::checkpoint {

// The checksum of what `crc` is the checksum of, followed by `bytes`; 0 is that of nothing.
uint32_t Crc32(uint32_t crc, std::string_view bytes);

}  // namespace tercio::checkpoint
