// A job's checkpoint as the source of a rank's state.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "grpcpp/channel.h"
#include "worker/trainer/checkpoint_client.h"
#include "worker/trainer/state_source.h"

namespace tercio::trainer {

// Read and sent by the coordinator.
std::shared_ptr<StateSource> CheckpointAtCoordinator(const std::shared_ptr<grpc::Channel>& channel,
                                                     const CheckpointIdentity& identity,
                                                     int64_t step);

// Read by this rank from its directory. `manifest_digest` is that of the commit; empty: unknown.
// Errors: those of checkpoint/reader.h.
absl::StatusOr<std::shared_ptr<StateSource>> CheckpointInDirectory(
    const std::string& directory, const std::string& manifest_digest);

}  // namespace tercio::trainer
