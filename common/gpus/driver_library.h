// Which driver library (libcuda.so.1) programs for GPUs load: the machine's own or, where that is
// older than their CUDA, the one of NVIDIA's package for forward compatibility (cuda-compat-13-0:
// a newer libcuda over an older kernel module). NVIDIA supports it on GPUs of data centres only,
// and it must not come first where the driver is new enough: it may then be the older of the two.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/gpus/gpus.h"

namespace tercio {

struct DriverQuestion {
  std::string driver;               // its version, "550.54.15"
  int driver_cuda = 0;              // the newest CUDA that it runs: 12040 is 12.4; 0: not known
  int runtime = 0;                  // CUDA of the program; 0: not known
  std::vector<std::string> models;  // the GPUs in use
  std::string compat_folder;        // where the package's libraries are; empty: nowhere
};

// The folder whose libraries come first; empty: none, the machine's own are new enough.
// FAILED_PRECONDITION says what is missing. Pure.
absl::StatusOr<std::string> ChooseDriverLibrary(const DriverQuestion& question);

// By NVML's name ("NVIDIA H100 80GB HBM3", "Tesla T4"). Pure.
bool IsDataCentreGpu(std::string_view model);

// The folder of the package: TERCIO_CUDA_COMPAT, or `libraries`/compat (of an installation), or
// where NVIDIA's package for this CUDA installs it. Empty: none has a libcuda.so.1.
std::string FindCompatFolder(const std::string& libraries, int runtime);

// The question for these GPUs and a program whose libraries are in `libraries`.
DriverQuestion QuestionOf(const Gpus& gpus, int runtime, const std::string& libraries);

// Makes programs that this one starts look for libraries in the folder first (LD_LIBRARY_PATH).
// Called while no other thread reads the environment.
void PutLibrariesFirst(const std::string& folder);

}  // namespace tercio
