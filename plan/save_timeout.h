// How long a checkpoint may take to be saved (checkpoint.timeout): trainers and coordinator must
// agree on it. Pure.
#pragma once

#include "proto/tercio/v1/job.pb.h"

namespace tercio::plan {

inline constexpr double kSaveTimeoutSeconds = 600;
// What a trainer's report begins with where a save was due and left out, where one took too long,
// and where a rank could not write its own part (checkpoint.path).
inline constexpr char kSkippedSave[] = "skipped: ";
inline constexpr char kSaveTimedOut[] = "not stored within ";
inline constexpr char kPartNotWritten[] = "not written: ";

// Jobs of an older version have none of their own.
inline double SaveTimeoutSeconds(const v1::JobSpec& job) {
  const double seconds = job.checkpoint().timeout_seconds();
  return seconds > 0 ? seconds : kSaveTimeoutSeconds;
}

}  // namespace tercio::plan
