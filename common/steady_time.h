// The time for everything that waits, expires or measures. The wall clock is for people only: it is
// set by operators and by NTP, differs between nodes, and must neither end a wait nor stretch one.
#pragma once

#include <chrono>

#include "absl/time/time.h"

namespace tercio {

// Never jumps. Its origin means nothing: only differences do.
inline absl::Time SteadyNow() {
  return absl::UnixEpoch() + absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

}  // namespace tercio
