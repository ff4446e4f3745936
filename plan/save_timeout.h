// How long a checkpoint may take to be saved (checkpoint.timeout): trainers and coordinator must
// agree on it. Pure.
#pragma once

#include "proto/tercio/v1/job.pb.h"

namespace tercio::plan {

inline constexpr double kSaveTimeoutSeconds = 600;

// Jobs of an older version have none of their own.
inline double SaveTimeoutSeconds(const v1::JobSpec& job) {
  const double seconds = job.checkpoint().timeout_seconds();
  return seconds > 0 ? seconds : kSaveTimeoutSeconds;
}

}  // namespace tercio::plan
