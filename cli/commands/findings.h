// The checks of `tercio doctor` and their findings.
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
  std::string check;  // what was checked: "disk", "gpu 0"
  Health health = Health::kOk;
  std::string detail;  // what was found
  std::string mend;    // how to fix it; empty if there is nothing to fix
};

// Findings about the machine except its GPUs. Writes a file into `directory`, or into its nearest
// existing parent, to probe the disk.
std::vector<Finding> MachineFindings(const std::string& directory);

// The finding `check` from a trainer's trial of its memory plan (worker/trainer/memory_trial.h).
// Pure.
Finding MemoryPlanFinding(const std::string& check, const absl::StatusOr<nlohmann::json>& trial);

// The evidence about the machine's GPUs.
struct GpuEvidence {
  absl::StatusOr<Gpus> gpus = Gpus();
  std::vector<GpuSample> samples;  // samples of each GPU, in their order
  // The output of `tercio-trainer-cuda --doctor` (worker/trainer/device_report.h). It numbers GPUs
  // by their position among those of `gpus` that have no error.
  absl::StatusOr<nlohmann::json> report = nlohmann::json();
  // The folder of the driver library that the trainer loads (common/gpus/driver_library.h).
  absl::StatusOr<std::string> driver_library = "";
};
// Collects the evidence; takes as long as the measurements, each step bounded.
GpuEvidence LookAtGpus();
// The trainer for GPUs, to be started from this process: its environment shows it the GPUs that
// this user may take, and its driver library. NOT_FOUND: there is no GPU.
absl::StatusOr<std::string> PrepareCudaTrainer();
// Pure.
std::vector<Finding> GpuFindings(const GpuEvidence& evidence);

}  // namespace tercio::cli
