// The framing between an agent and the process that reads a job's data for it (tercio-trainer
// --prepare): each of the messages of prepare.proto follows its length.
//
// Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace tercio::data {

// Exit code of the process if it exceeds its memory limit.
inline constexpr int kExitOutOfMemory = 5;

inline constexpr size_t kLengthBytes = sizeof(uint64_t);
inline constexpr uint64_t kLongestMessage = uint64_t{64} << 20;

inline std::string WithLength(std::string_view message) {
  const uint64_t length = message.size();
  std::string bytes(reinterpret_cast<const char*>(&length), sizeof(length));
  bytes += message;
  return bytes;
}

// Requires: at least kLengthBytes.
inline uint64_t LengthIn(std::string_view bytes) {
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof(length));
  return length;
}

}  // namespace tercio::data
