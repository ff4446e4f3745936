// How large a job may be. Beyond these sizes sums of bytes, and of ranks, would leave their
// integers. Pure.
#pragma once

#include "absl/status/status.h"
#include "proto/tercio/v1/job.pb.h"

namespace tercio::plan {

inline constexpr int kMostRanks = 1 << 20;
inline constexpr int kMostLayers = 1 << 12;
inline constexpr int kMostHidden = 1 << 20;
inline constexpr int kMostFfn = 1 << 22;
inline constexpr int kMostContext = 1 << 24;
inline constexpr int kMostSequences = 1 << 24;  // sequences of a global batch
inline constexpr int kMostVocabulary = 1 << 30;

// INVALID_ARGUMENT names the first size that is too large, or the sizes that are too large
// together.
absl::Status CheckSizes(const v1::JobSpec& job);

}  // namespace tercio::plan
