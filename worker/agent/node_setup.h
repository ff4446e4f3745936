// What an agent does once before it runs anything: checks its settings and fills in what they leave
// open, takes its state directory, gets its certificate.
//
// Threads: one.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/file.h"
#include "worker/agent/agent_flags.h"
#include "worker/agent/link/agent_store.h"
#include "worker/agent/link/membership.h"

namespace tercio {

// INVALID_ARGUMENT: an address that is not loopback without means for TLS, or no state directory.
absl::Status CheckFlags(const AgentFlags& flags);

// FAILED_PRECONDITION: another agent uses the directory.
absl::StatusOr<std::unique_ptr<FileLock>> LockState(const std::string& directory);

// What the flags leave open: device, slots, addresses, folders. NOT_FOUND (the trainer program) |
// INVALID_ARGUMENT | UNAVAILABLE (no route to the coordinator).
absl::Status FillIn(AgentFlags& flags);

// Bounds what jobs may do to this node, and gets the node's certificate where there is TLS, which
// waits until somebody lets it in. CANCELLED: `stopped` became true before that.
absl::StatusOr<std::unique_ptr<Membership>> JoinCluster(AgentFlags& flags,
                                                        const std::function<bool()>& stopped);

// Makes the folder in which trainers find the agent and leave their progress, and names it and the
// socket in *agent.
absl::Status PrepareRuntime(AgentStore& store, AgentOptions* agent);

}  // namespace tercio
