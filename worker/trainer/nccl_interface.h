// Which network interface NCCL talks over: NCCL takes names, a node is told an address.
#pragma once

#include <string>

namespace tercio {

// The name of the interface that has this IP address; empty: none has.
std::string InterfaceOf(const std::string& address);

// Tells NCCL's bootstrap and socket transport to use the interface of the node's data address,
// unless NCCL_SOCKET_IFNAME says otherwise. Before NCCL's first call, while this thread is alone.
void UseInterfaceOf(const std::string& address);

}  // namespace tercio
