// Process groups over memory of the host: Gloo between processes.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "proto/tercio/v1/plan.pb.h"
#include "proto/tercio/v1/trainer.pb.h"
#include "worker/collective/communicator.h"
#include "worker/collective/gloo_transport.h"

namespace tercio::trainer {

// Like JoinGroup (backend.h).
absl::StatusOr<std::unique_ptr<collective::Communicator>> JoinHostGroup(
    const v1::TrainerAssignment& assignment, const v1::ProcessGroup& group,
    collective::CommunicatorOptions options, collective::RendezvousStore& rendezvous);

}  // namespace tercio::trainer
