// The disk's side of the core's questions about checkpoints: which one an attempt can start from
// (FindCheckpoint), and whether every byte of one is right.
//
// A checkpoint is taken without reading its bytes where each rank will verify what it reads (a
// manifest with digests of blocks). All bytes are read first where the core suspects it, where it
// is known to have been damaged, where a newer one is, and where damage could not be noticed later
// (version 2).
//
// Threads: any; both may wait for the disk, or forever where it hangs.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "checkpoint/reader.h"
#include "checkpoint/store.h"
#include "coordinator/core/core.h"

namespace tercio::coordinator {

// Reads every byte of the checkpoint in a directory; one finding per file.
using VerifyDirectory = std::function<std::vector<checkpoint::Finding>(const std::string&)>;

CheckpointFound SearchCheckpoint(const checkpoint::Store& store, const FindCheckpoint& wanted,
                                 const VerifyDirectory& verify);

// Sums up the findings about one checkpoint.
CheckpointVerified VerdictOf(const std::string& job, int64_t step,
                             const std::vector<checkpoint::Finding>& findings);

CheckpointVerified VerifyStep(const checkpoint::Store& store, const std::string& job, int64_t step,
                              const VerifyDirectory& verify);

}  // namespace tercio::coordinator
