// The checks that a job must pass before it is accepted.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/service/coordinator.h"
#include "proto/tercio/v1/job.pb.h"

namespace tercio::coordinator {

// The places where checkpoints may be.
struct CheckpointPlaces {
  std::string state_dir;           // for jobs without a checkpoint.path
  std::vector<std::string> roots;  // below which such a path may lie
  bool any = false;                // it may lie anywhere
};

// Settles what `auto` means (config::ResolveDevice). INVALID_ARGUMENT: can never run, or does not
// fit into the memory of any of these nodes (checked again where it is placed; without a node only
// then), or has an invalid checkpoint.path. PERMISSION_DENIED: the path lies outside of what
// `places` allow. FAILED_PRECONDITION: its checkpoints, keep_last and the one being written, do not
// fit on their disk beside what other jobs may still write.
absl::Status Admit(v1::JobSpec* wanted, const std::vector<Coordinator::NodeView>& nodes,
                   const std::vector<Coordinator::JobView>& jobs, const CheckpointPlaces& places);

}  // namespace tercio::coordinator
