// Addresses as people write them: HOST:PORT, [IPV6]:PORT.
//
// Pure; safe from any thread.
#pragma once

#include <optional>
#include <string>

namespace tercio {

struct HostPort {
  std::string host;  // without brackets
  std::string port;
};

// None where either is missing.
std::optional<HostPort> SplitHostPort(const std::string& address);

}  // namespace tercio
