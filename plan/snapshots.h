// Copies of snapshots in the memory of agents (checkpoint.peer_copies): what plan, trainer and
// coordinator must agree on. Pure.
#pragma once

#include "proto/tercio/v1/job.pb.h"

namespace tercio::plan {

inline constexpr int kMostPeerCopies = 16;

// Whether copies are kept at all. A snapshot then holds all that a rank needs to continue, not only
// what it saves in checkpoints.
inline bool KeepsCopies(const v1::JobSpec& job) { return job.checkpoint().peer_copies() > 0; }

}  // namespace tercio::plan
