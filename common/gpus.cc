#include "common/gpus.h"

#include <dlfcn.h>

#include <memory>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace tercio {
namespace {

// The part of NVML's interface that is used, as its documentation describes it (version 2 of the
// functions where there is one). 0 is success.
using NvmlDevice = struct NvmlDeviceSt*;
struct NvmlMemory {
  unsigned long long total, free, used;
};
constexpr unsigned int kTextBytes = 96;

struct Nvml {
  int (*init)();
  int (*shutdown)();
  int (*driver_version)(char* text, unsigned int bytes);
  int (*device_count)(unsigned int* count);
  int (*device_by_index)(unsigned int index, NvmlDevice* device);
  int (*device_name)(NvmlDevice device, char* text, unsigned int bytes);
  int (*device_uuid)(NvmlDevice device, char* text, unsigned int bytes);
  int (*device_memory)(NvmlDevice device, NvmlMemory* memory);
  const char* (*error_string)(int result);
};

template <typename Function>
bool Load(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  return *function != nullptr;
}

bool LoadAll(void* library, Nvml* nvml) {
  return Load(library, "nvmlInit_v2", &nvml->init) &&
         Load(library, "nvmlShutdown", &nvml->shutdown) &&
         Load(library, "nvmlSystemGetDriverVersion", &nvml->driver_version) &&
         Load(library, "nvmlDeviceGetCount_v2", &nvml->device_count) &&
         Load(library, "nvmlDeviceGetHandleByIndex_v2", &nvml->device_by_index) &&
         Load(library, "nvmlDeviceGetName", &nvml->device_name) &&
         Load(library, "nvmlDeviceGetUUID", &nvml->device_uuid) &&
         Load(library, "nvmlDeviceGetMemoryInfo", &nvml->device_memory) &&
         Load(library, "nvmlErrorString", &nvml->error_string);
}

absl::StatusOr<Gpus> Read(const Nvml& nvml) {
  const auto check = [&](int result, const char* what) {
    if (result == 0) return absl::OkStatus();
    return absl::UnavailableError(absl::StrCat("the NVIDIA driver does not say ", what, ": ",
                                               nvml.error_string(result),
                                               "; nvidia-smi may tell more"));
  };
  Gpus gpus;
  char text[kTextBytes] = "";
  TERCIO_RETURN_IF_ERROR(check(nvml.driver_version(text, kTextBytes), "its version"));
  gpus.driver = text;
  unsigned int count = 0;
  TERCIO_RETURN_IF_ERROR(check(nvml.device_count(&count), "how many GPUs there are"));
  for (unsigned int i = 0; i < count; ++i) {
    NvmlDevice device = nullptr;
    TERCIO_RETURN_IF_ERROR(check(nvml.device_by_index(i, &device), "which GPUs there are"));
    Gpu gpu;
    TERCIO_RETURN_IF_ERROR(check(nvml.device_name(device, text, kTextBytes), "a GPU's name"));
    gpu.model = text;
    TERCIO_RETURN_IF_ERROR(check(nvml.device_uuid(device, text, kTextBytes), "a GPU's UUID"));
    gpu.uuid = text;
    NvmlMemory memory = {};
    TERCIO_RETURN_IF_ERROR(check(nvml.device_memory(device, &memory), "a GPU's memory"));
    gpu.memory_bytes = static_cast<int64_t>(memory.total);
    gpus.list.push_back(std::move(gpu));
  }
  return gpus;
}

}  // namespace

absl::StatusOr<Gpus> FindGpus() {
  void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return Gpus();
  const absl::Cleanup close = [library] { dlclose(library); };
  Nvml nvml = {};
  if (!LoadAll(library, &nvml)) {
    return absl::UnavailableError(
        "libnvidia-ml.so.1 lacks a function that has been in it since 2012");
  }
  if (const int result = nvml.init(); result != 0) {
    return absl::UnavailableError(
        absl::StrCat("the NVIDIA driver does not answer: ", nvml.error_string(result)));
  }
  const absl::Cleanup shut_down = [&nvml] { nvml.shutdown(); };
  return Read(nvml);
}

}  // namespace tercio
