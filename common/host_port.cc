#include "common/host_port.h"

namespace tercio {

std::optional<HostPort> SplitHostPort(const std::string& address) {
  // The last colon separates the port: addresses of IPv6 have others.
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) return std::nullopt;
  HostPort parts = {address.substr(0, colon), address.substr(colon + 1)};
  if (parts.host.starts_with('[') && parts.host.ends_with(']')) {
    parts.host = parts.host.substr(1, parts.host.size() - 2);
  }
  if (parts.host.empty() || parts.port.empty()) return std::nullopt;
  return parts;
}

std::string ReachableAt(const std::string& address, const std::string& host) {
  const std::optional<HostPort> parts = SplitHostPort(address);
  // An address that means all interfaces cannot be connected to from elsewhere.
  if (!parts.has_value() || (parts->host != "0.0.0.0" && parts->host != "::")) return address;
  const bool six = host.find(':') != std::string::npos;
  return (six ? "[" + host + "]" : host) + ":" + parts->port;
}

}  // namespace tercio
