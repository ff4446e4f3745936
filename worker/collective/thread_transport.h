// Ranks as threads of one process: every layout in one test, no sockets.
#pragma once

#include <memory>
#include <vector>

#include "worker/collective/transport.h"

namespace tercio::collective {

// One transport per rank of a group of `size`; element r belongs to rank r. They share their state
// and may be used and destroyed in different threads. Aborting one aborts all.
std::vector<std::unique_ptr<Transport>> CreateThreadTransports(int size);

}  // namespace tercio::collective
