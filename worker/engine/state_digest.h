// The digest of the training state over all ranks (plan/state_digest.h), from the slices that they
// save: together these hold every element of every tensor exactly once.
//
// Threads: that of the engine. An error is that of the communicator or the device.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/collective/communicator.h"
#include "worker/device/device.h"
#include "worker/engine/arena.h"
#include "worker/engine/staged_copy.h"
#include "worker/engine/state_slices.h"

namespace tercio::engine {

// Memory of the device that is free between steps: `count` doubles, three at least.
struct DigestScratch {
  double* begin;
  int64_t count;
};

// Collective over `world`. What is no tensor (StateSlice::part) does not count. `all`: a fact of
// this rank becomes whether it is one of every rank.
absl::StatusOr<uint64_t> DigestOfState(absl::Span<const StateSlice> saved, const Arena& arena,
                                       collective::Communicator& world, device::Stream& stream,
                                       StagedCopy& staged, DigestScratch scratch, bool* all);

}  // namespace tercio::engine
