// Chooses the network interface for NCCL: NCCL takes names, while a node is given an address.
#pragma once

#include <string>

namespace tercio::trainer {

// The name of the interface that has this IP address; empty: none.
std::string InterfaceOf(const std::string& address);

// Makes NCCL's bootstrap and socket transport use the interface of the node's data address, unless
// NCCL_SOCKET_IFNAME is set. Called before NCCL's first call, while this is the only thread.
void UseInterfaceOf(const std::string& address);

}  // namespace tercio::trainer
