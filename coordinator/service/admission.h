// What a job must pass before it is taken in.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/service/coordinator.h"
#include "proto/tercio/v1/job.pb.h"

namespace tercio::coordinator {

// Settles what `auto` means (config::ResolveDevice). INVALID_ARGUMENT: can never run, or does not
// fit into the memory of any of these nodes (checked again where it is placed; without a node only
// then). FAILED_PRECONDITION: its checkpoints do not fit on the disk of `state_dir`, where
// keep_last and the one being written must.
absl::Status Admit(v1::JobSpec* wanted, const std::vector<Coordinator::NodeView>& nodes,
                   const std::string& state_dir);

}  // namespace tercio::coordinator
