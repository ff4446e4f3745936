// Addresses in the form HOST:PORT or [IPV6]:PORT.
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

// nullopt if either is missing.
std::optional<HostPort> SplitHostPort(const std::string& address);

// The address at which others reach a server that listens on `address`: the address itself, or, if
// that is every interface (0.0.0.0, ::), its port at `host`.
std::string ReachableAt(const std::string& address, const std::string& host);

}  // namespace tercio
