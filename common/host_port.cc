#include "common/host_port.h"

namespace tercio {

std::optional<HostPort> SplitHostPort(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) return std::nullopt;
  HostPort parts = {address.substr(0, colon), address.substr(colon + 1)};
  if (parts.host.starts_with('[') && parts.host.ends_with(']')) {
    parts.host = parts.host.substr(1, parts.host.size() - 2);
  }
  if (parts.host.empty() || parts.port.empty()) return std::nullopt;
  return parts;
}

}  // namespace tercio
