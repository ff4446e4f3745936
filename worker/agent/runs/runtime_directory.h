// The directory in which an agent's trainers find it: its socket and their progress pages. Paths of
// sockets are limited to 107 bytes, so it lies under $RUNTIME_DIRECTORY, else under /tmp, and never
// in the state directory.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "worker/agent/link/agent_store.h"

namespace tercio::agent {

// The directory of the previous agent, which the store remembers, if it still exists and belongs to
// this user; else a new one under `parent`. UNAVAILABLE if none can be made.
absl::StatusOr<std::string> OpenRuntimeDirectory(AgentStore& store, const std::string& parent);

// Removes it; for an agent that leaves no trainers.
void RemoveRuntimeDirectory(AgentStore& store, const std::string& path);

}  // namespace tercio::agent
