// The GPUs of this machine as NVIDIA's driver describes them, through its management library
// (libnvidia-ml.so.1, NVML), which is loaded when it is asked for: nothing else needs it, and
// machines without GPUs do not have it.
//
// Threads: any.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tercio {

struct Gpu {
  std::string model;  // "NVIDIA H200"
  std::string uuid;
  int64_t memory_bytes = 0;
};

struct Gpus {
  std::string driver;     // version; empty where there is none
  std::vector<Gpu> list;  // as the driver numbers them
};

// Empty where there is no driver. UNAVAILABLE when there is one that does not answer.
absl::StatusOr<Gpus> FindGpus();

}  // namespace tercio
