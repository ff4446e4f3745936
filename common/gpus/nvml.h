// NVIDIA's management library (libnvidia-ml.so.1), loaded at run time: nothing else needs it, and
// machines without GPUs do not have it. Types and numbers are those of the NVML API reference.
//
// Functions beyond the first few are null if the driver is too old to have them. Any of them may
// hang when the driver does: callers that must not hang call them on a thread of their own.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace tercio::nvml {

using Device = struct DeviceSt*;
using EventSet = struct EventSetSt*;

// Results.
inline constexpr int kSuccess = 0;
inline constexpr int kNotSupported = 3;
inline constexpr int kInsufficientSize = 7;
inline constexpr int kTimeout = 10;
inline constexpr int kGpuIsLost = 15;
inline constexpr int kResetRequired = 16;

inline constexpr unsigned int kTextBytes = 96;
inline constexpr unsigned long long kXidEvents = 8;
inline constexpr unsigned int kDieTemperature = 0;
inline constexpr unsigned int kSmClock = 1;
inline constexpr unsigned int kMemoryClock = 2;
inline constexpr unsigned int kCorrected = 0;
inline constexpr unsigned int kUncorrected = 1;
inline constexpr unsigned int kSinceDriverLoad = 0;
inline constexpr unsigned int kSinceManufacture = 1;
inline constexpr unsigned int kMostLinks = 36;
inline constexpr unsigned long long kNoValue = ~0ull;  // unknown memory of a process

struct Memory {
  unsigned long long total, free, used;
};
struct Utilization {
  unsigned int gpu, memory;  // per cent
};
struct ProcessInfo {
  unsigned int pid;
  unsigned long long used_bytes;
  unsigned int gpu_instance, compute_instance;
};
struct EventData {
  Device device;
  unsigned long long type, data;
  unsigned int gpu_instance, compute_instance;
};

struct Functions {
  int (*init)();
  int (*shutdown)();
  int (*driver_version)(char* text, unsigned int bytes);
  int (*device_count)(unsigned int* count);
  int (*device_by_index)(unsigned int index, Device* device);
  int (*device_name)(Device device, char* text, unsigned int bytes);
  int (*device_uuid)(Device device, char* text, unsigned int bytes);
  int (*device_memory)(Device device, Memory* memory);
  const char* (*error_string)(int result);
  // ---- may be null ----
  int (*cuda_version)(int* version);
  int (*utilization)(Device device, Utilization* utilization);
  int (*power)(Device device, unsigned int* milliwatts);
  int (*power_limit)(Device device, unsigned int* milliwatts);
  int (*temperature)(Device device, unsigned int sensor, unsigned int* celsius);
  int (*clock)(Device device, unsigned int kind, unsigned int* megahertz);
  int (*max_clock)(Device device, unsigned int kind, unsigned int* megahertz);
  int (*clock_reasons)(Device device, unsigned long long* reasons);
  int (*ecc_mode)(Device device, unsigned int* now, unsigned int* after_reboot);
  int (*ecc_errors)(Device device, unsigned int type, unsigned int counter,
                    unsigned long long* count);
  int (*remapped_rows)(Device device, unsigned int* corrected, unsigned int* uncorrected,
                       unsigned int* pending, unsigned int* failed);
  int (*retired_pages_pending)(Device device, unsigned int* pending);
  int (*pcie_generation)(Device device, unsigned int* generation);
  int (*pcie_width)(Device device, unsigned int* lanes);
  int (*max_pcie_generation)(Device device, unsigned int* generation);
  int (*max_pcie_width)(Device device, unsigned int* lanes);
  int (*link_state)(Device device, unsigned int link, unsigned int* active);
  int (*compute_mode)(Device device, unsigned int* mode);
  int (*persistence_mode)(Device device, unsigned int* on);
  int (*mig_mode)(Device device, unsigned int* now, unsigned int* after_reset);
  int (*processes)(Device device, unsigned int* count, ProcessInfo* infos);
  int (*event_set_create)(EventSet* set);
  int (*event_set_free)(EventSet set);
  int (*event_register)(Device device, unsigned long long types, EventSet set);
  int (*event_wait)(EventSet set, EventData* data, unsigned int milliseconds);
};

// An initialised library, shut down and unloaded with this object.
class Library {
 public:
  // NOT_FOUND if there is no driver. UNAVAILABLE if there is one that does not answer.
  static absl::StatusOr<std::unique_ptr<Library>> Load();
  ~Library();

  const Functions& functions() const { return functions_; }

 private:
  Library() = default;
  void* handle_ = nullptr;
  bool initialised_ = false;
  Functions functions_ = {};
};

}  // namespace tercio::nvml
