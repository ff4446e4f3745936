// What `tercio doctor` looks at, and what it makes of it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/gpus/gpus.h"
#include "nlohmann/json.hpp"

namespace tercio::cli {

enum class Health { kOk, kWarning, kError, kUnknown };

struct Finding {
  std::string check;  // what was looked at: "disk", "gpu 0"
  Health health = Health::kOk;
  std::string detail;  // what was found
  std::string mend;    // empty where there is nothing to mend
};

// Findings about the machine except its GPUs. Writes a file into `directory`, or into its nearest
// existing parent, to probe the disk.
std::vector<Finding> MachineFindings(const std::string& directory);

// What a trainer's trial of its memory plan says (worker/trainer/memory_trial.h), as `check`. Pure.
Finding MemoryPlanFinding(const std::string& check, const absl::StatusOr<nlohmann::json>& trial);

// What is known of the machine's GPUs.
struct GpuEvidence {
  absl::StatusOr<Gpus> gpus = Gpus();
  std::vector<GpuSample> samples;  // of each, in their order
  // What `tercio-trainer-cuda --doctor` has said (worker/trainer/device_report.h). Its numbers of
  // GPUs are places among those of `gpus` that have no error.
  absl::StatusOr<nlohmann::json> report = nlohmann::json();
};
// Looks; takes as long as the measurements, each step bounded.
GpuEvidence LookAtGpus();
// Pure.
std::vector<Finding> GpuFindings(const GpuEvidence& evidence);

}  // namespace tercio::cli
