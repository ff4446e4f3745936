// The agent's preparations before it runs anything: checks its settings and fills in what they
// leave open, locks its state directory, obtains its certificate.
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

namespace tercio::agent {

// INVALID_ARGUMENT: an address that is not loopback without means for TLS, or no state directory.
absl::Status CheckFlags(const AgentFlags& flags);

// FAILED_PRECONDITION: another agent uses the directory.
absl::StatusOr<std::unique_ptr<FileLock>> LockState(const std::string& directory);

// Fills in what the flags leave open: device, slots, addresses, folders. NOT_FOUND (the trainer
// program) | INVALID_ARGUMENT | UNAVAILABLE (no route to the coordinator).
absl::Status FillIn(AgentFlags& flags);

// Bounds what jobs may do on this node, and obtains the node's certificate if there is TLS, waiting
// until the cluster admits it. CANCELLED: `stopped` became true before that.
absl::StatusOr<std::unique_ptr<Membership>> JoinCluster(AgentFlags& flags,
                                                        const std::function<bool()>& stopped);

// Makes the folder in which trainers find the agent and leave their progress, and names it and the
// socket in *agent.
absl::Status PrepareRuntime(AgentStore& store, AgentOptions* agent);

}  // namespace tercio::agent
