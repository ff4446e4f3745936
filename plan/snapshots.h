// Snapshots, and copies of them in the memory of agents (checkpoint.peer_copies): what plan,
// trainer and coordinator must agree on. Pure.
#pragma once

#include "plan/precision.h"
#include "proto/tercio/v1/job.pb.h"

namespace tercio::plan {

inline constexpr int kMostPeerCopies = 16;

// Whether copies are kept at all. A snapshot then holds all that a rank needs to continue, not only
// what it saves in checkpoints.
inline bool KeepsCopies(const v1::JobSpec& job) { return job.checkpoint().peer_copies() > 0; }

// Whether a save reads the state where it lies, and the next update waits for the end of the save;
// else it reads a copy, which takes as much memory. The state of a GPU lies where no save can read
// it.
inline bool SavesInPlace(const v1::JobSpec& job) {
  return job.checkpoint().snapshot() == v1::SNAPSHOT_KIND_IN_PLACE && !OnGpu(job);
}

}  // namespace tercio::plan
