// Collectives of GPU ranks over the host: data is copied to it, handed to the CPU's communicator,
// and copied back. Slower than NCCL, but possible everywhere: several ranks can share a GPU, sums
// have the CPU's fixed order, and a network that only carries TCP is enough.
//
// Threads and errors as communicator.h. A call waits for the stream it is given.
#pragma once

#include <memory>

#include "worker/collective/communicator.h"

namespace tercio::collective {

// `over_host` takes memory of the host.
std::unique_ptr<Communicator> CreateHostStagedCommunicator(std::unique_ptr<Communicator> over_host);

}  // namespace tercio::collective
