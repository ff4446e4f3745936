#include "common/gpus/nvml.h"

#include <dlfcn.h>

#include "absl/strings/str_cat.h"

namespace tercio::nvml {
namespace {

// Looks up the first of these names that the library has.
template <typename Function>
// Names of functions have changed between versions of the driver.
bool Find(void* library, Function* function, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    *function = reinterpret_cast<Function>(dlsym(library, name));
    if (*function != nullptr) return true;
  }
  return false;
}

// Without one of these the library is of no use.
bool FindRequired(void* library, Functions* nvml) {
  return Find(library, &nvml->init, {"nvmlInit_v2"}) &&
         Find(library, &nvml->shutdown, {"nvmlShutdown"}) &&
         Find(library, &nvml->driver_version, {"nvmlSystemGetDriverVersion"}) &&
         Find(library, &nvml->device_count, {"nvmlDeviceGetCount_v2"}) &&
         Find(library, &nvml->device_by_index, {"nvmlDeviceGetHandleByIndex_v2"}) &&
         Find(library, &nvml->device_name, {"nvmlDeviceGetName"}) &&
         Find(library, &nvml->device_uuid, {"nvmlDeviceGetUUID"}) &&
         Find(library, &nvml->device_memory, {"nvmlDeviceGetMemoryInfo"}) &&
         Find(library, &nvml->error_string, {"nvmlErrorString"});
}

// Functions that the library lacks stay null.
void FindOptional(void* library, Functions* nvml) {
  Find(library, &nvml->cuda_version,
       {"nvmlSystemGetCudaDriverVersion_v2", "nvmlSystemGetCudaDriverVersion"});
  Find(library, &nvml->utilization, {"nvmlDeviceGetUtilizationRates"});
  Find(library, &nvml->power, {"nvmlDeviceGetPowerUsage"});
  Find(library, &nvml->power_limit, {"nvmlDeviceGetEnforcedPowerLimit"});
  Find(library, &nvml->temperature, {"nvmlDeviceGetTemperature"});
  Find(library, &nvml->clock, {"nvmlDeviceGetClockInfo"});
  Find(library, &nvml->max_clock, {"nvmlDeviceGetMaxClockInfo"});
  Find(library, &nvml->clock_reasons,
       {"nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"});
  Find(library, &nvml->ecc_mode, {"nvmlDeviceGetEccMode"});
  Find(library, &nvml->ecc_errors, {"nvmlDeviceGetTotalEccErrors"});
  Find(library, &nvml->remapped_rows, {"nvmlDeviceGetRemappedRows"});
  Find(library, &nvml->retired_pages_pending, {"nvmlDeviceGetRetiredPagesPendingStatus"});
  Find(library, &nvml->pcie_generation, {"nvmlDeviceGetCurrPcieLinkGeneration"});
  Find(library, &nvml->pcie_width, {"nvmlDeviceGetCurrPcieLinkWidth"});
  Find(library, &nvml->max_pcie_generation, {"nvmlDeviceGetMaxPcieLinkGeneration"});
  Find(library, &nvml->max_pcie_width, {"nvmlDeviceGetMaxPcieLinkWidth"});
  Find(library, &nvml->link_state, {"nvmlDeviceGetNvLinkState"});
  Find(library, &nvml->compute_mode, {"nvmlDeviceGetComputeMode"});
  Find(library, &nvml->persistence_mode, {"nvmlDeviceGetPersistenceMode"});
  Find(library, &nvml->mig_mode, {"nvmlDeviceGetMigMode"});
  // Version 3 has the layout of ProcessInfo; version 1 has another one.
  Find(library, &nvml->processes, {"nvmlDeviceGetComputeRunningProcesses_v3"});
  Find(library, &nvml->event_set_create, {"nvmlEventSetCreate"});
  Find(library, &nvml->event_set_free, {"nvmlEventSetFree"});
  Find(library, &nvml->event_register, {"nvmlDeviceRegisterEvents"});
  Find(library, &nvml->event_wait, {"nvmlEventSetWait_v2"});
}

}  // namespace

absl::StatusOr<std::unique_ptr<Library>> Library::Load() {
  std::unique_ptr<Library> library(new Library);
  // The library is loaded at run time: nodes without a driver need none.
  library->handle_ = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library->handle_ == nullptr) {
    return absl::NotFoundError("there is no NVIDIA driver (libnvidia-ml.so.1)");
  }
  if (!FindRequired(library->handle_, &library->functions_)) {
    return absl::UnavailableError(
        "libnvidia-ml.so.1 lacks a function that has been in it since 2012");
  }
  FindOptional(library->handle_, &library->functions_);
  // The driver is asked for the first time here, and may be in trouble.
  if (const int result = library->functions_.init(); result != kSuccess) {
    return absl::UnavailableError(absl::StrCat(
        "the NVIDIA driver does not answer: ", library->functions_.error_string(result),
        "; check nvidia-smi and the kernel log"));
  }
  library->initialised_ = true;
  return library;
}

Library::~Library() {
  // What was not initialised must not be shut down.
  if (initialised_) functions_.shutdown();
  if (handle_ != nullptr) dlclose(handle_);
}

}  // namespace tercio::nvml
