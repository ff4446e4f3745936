#include "worker/trainer/nccl_interface.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <sys/socket.h>

#include <cstdlib>

#include "absl/cleanup/cleanup.h"

namespace tercio::trainer {
namespace {

// By itself NCCL takes an interface that looks right, which other nodes may not reach.
constexpr char kVariable[] = "NCCL_SOCKET_IFNAME";

std::string TextOf(const sockaddr* address) {
  const socklen_t size = address->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  char text[NI_MAXHOST] = "";
  const int error = getnameinfo(address, size, text, sizeof(text), nullptr, 0, NI_NUMERICHOST);
  return error == 0 ? text : "";
}

}  // namespace

std::string InterfaceOf(const std::string& address) {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return "";
  const absl::Cleanup free_all = [all] { freeifaddrs(all); };
  for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
    // Some interfaces, such as tunnels, have no address.
    if (one->ifa_addr == nullptr) continue;
    // Each interface is also listed with its hardware address.
    const int family = one->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    if (TextOf(one->ifa_addr) == address) return one->ifa_name;
  }
  return "";
}

void UseInterfaceOf(const std::string& address) {
  const std::string name = InterfaceOf(address);
  // "=": exactly this one, not all whose names begin with it.
  if (!name.empty()) setenv(kVariable, ("=" + name).c_str(), /*overwrite=*/0);
}

}  // namespace tercio::trainer
