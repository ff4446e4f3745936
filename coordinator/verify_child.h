// Verification of a checkpoint in a process of its own (`tercio-coordinator --verify-checkpoint
// DIR`): a disk or a manifest that crashes it does not end the coordinator, and a child that hangs
// can be killed.
//
// Threads: VerifyInChild from any; some children run at a time, the rest wait for their turn.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/reader.h"

namespace tercio::coordinator {

inline constexpr char kVerifyFlag[] = "--verify-checkpoint";

// As checkpoint::VerifyCheckpoint; a child that fails is a finding about the directory that is not
// damage.
std::vector<checkpoint::Finding> VerifyInChild(const std::string& directory);

// The child: prints the findings as JSON. The exit code of the process.
int RunVerifyChild(const std::string& directory);

}  // namespace tercio::coordinator
