// Exit codes of all programs, and their mapping from errors.
//
// Threads: any.
#pragma once

#include "absl/status/status.h"

namespace tercio {

// Scripts rely on these numbers: none changes its meaning (docs/cli.md).
inline constexpr int kExitOk = 0;
inline constexpr int kExitJobFailed = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitNotFound = 3;
inline constexpr int kExitForbidden = 4;
inline constexpr int kExitUnreachable = 5;
inline constexpr int kExitTimeout = 6;
inline constexpr int kExitConflict = 7;
inline constexpr int kExitCancelled = 8;
inline constexpr int kExitInternal = 9;
inline constexpr int kExitInterrupted = 130;
inline constexpr int kExitTerminated = 143;

int ExitCodeOf(const absl::Status& status);

}  // namespace tercio
