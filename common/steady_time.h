// The clock for everything that waits, expires or is measured. The wall clock is for people only:
// it is set by operators and by NTP, differs between nodes, and must neither end nor prolong a
// wait.
#pragma once

#include <chrono>

#include "absl/time/time.h"

namespace tercio {

// Never jumps. Its origin means nothing: only differences do.
inline absl::Time SteadyNow() {
  return absl::UnixEpoch() + absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

}  // namespace tercio
