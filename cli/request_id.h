// An id that makes a repeated submission the same job.
#pragma once

#include <random>
#include <string>

#include "absl/strings/str_format.h"

namespace tercio::cli {

inline std::string NewRequestId() {
  std::random_device random;
  return absl::StrFormat("%08x%08x%08x%08x", random(), random(), random(), random());
}

}  // namespace tercio::cli
