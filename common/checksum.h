// XXH3 with 128 bits (xxHash, https://xxhash.com): detects bytes that changed in transit or on
// disk. Many times as fast as SHA-256, but no protection against attackers, for which there is
// SHA-256 (common/sha256.h).
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace tercio {

class Checksum {
 public:
  Checksum();
  ~Checksum();
  Checksum(const Checksum&) = delete;
  Checksum& operator=(const Checksum&) = delete;

  void Update(std::string_view bytes);
  // The checksum of all bytes so far: 32 lower-case hexadecimal digits, the same on every machine.
  std::string Hex() const;
  // The same as 16 bytes, the most significant first.
  std::string Bytes() const;
  // Forgets all bytes so far.
  void Reset();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string ChecksumHex(std::string_view bytes);
// 16 bytes, as Checksum::Bytes.
std::string ChecksumBytes(std::string_view bytes);

}  // namespace tercio
