// The GPUs of this machine as NVIDIA's driver describes them, once (FindGpus) or again and again
// (GpuSession), through its management library (common/gpus/nvml.h).
//
// Threads: FindGpus from any; a session from one at a time. Both hang when the driver does.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tercio {

struct Gpu {
  int index = 0;      // the driver's number, as in nvidia-smi -i
  std::string model;  // "NVIDIA H200"; empty when `error` is not
  std::string uuid;
  int64_t memory_bytes = 0;  // 0: not known
  std::string error;         // why the driver says no more of it; empty: it does
};

struct Gpus {
  std::string driver;     // version; empty where there is none
  int cuda_version = 0;   // the newest CUDA that the driver runs: 13020 is 13.2; 0: not known
  std::vector<Gpu> list;  // ascending by index
};

// Empty where there is no driver. UNAVAILABLE when there is one that does not answer.
absl::StatusOr<Gpus> FindGpus();

// Those that a value of CUDA_VISIBLE_DEVICES leaves, in the driver's order: numbers or beginnings
// of UUIDs, separated by commas; the first one that names no GPU ends the list, as for CUDA.
Gpus VisibleGpus(Gpus gpus, const std::string& visible);

// Why clocks are not at their highest (NVML API reference, "nvmlClocksEventReasons").
struct ClockReason {
  uint64_t bit;
  const char* name;
  bool slows;  // the GPU does less than it could
};
const std::vector<ClockReason>& ClockReasons();

enum class ComputeMode { kDefault, kProhibited, kExclusive };

// A process with a context on a GPU.
struct GpuProcess {
  int pid = 0;  // as the host numbers processes; of no use in a container with its own numbers
  int64_t memory_bytes = 0;
  std::string name;  // empty where this process does not see it
};

// How a GPU is at one moment. What it or its driver does not say is absent.
struct GpuSample {
  bool lost = false;            // fallen off the bus, or otherwise out of reach
  bool reset_required = false;  // before it can be used again
  std::string error;            // why the driver says nothing else of it; empty: it does
  std::optional<double> utilization_ratio;         // of time with a kernel running
  std::optional<double> memory_utilization_ratio;  // of time with memory in use
  std::optional<int64_t> memory_total_bytes;
  std::optional<int64_t> memory_used_bytes;
  std::optional<double> power_watts;
  std::optional<double> power_limit_watts;
  std::optional<double> temperature_celsius;
  std::optional<double> sm_clock_hertz;
  std::optional<double> sm_clock_limit_hertz;  // the highest it can have
  std::optional<double> memory_clock_hertz;
  std::optional<uint64_t> clock_reasons;  // bits of ClockReasons()
  std::optional<bool> ecc_enabled;
  // Since the driver was loaded, and since the GPU was made.
  std::optional<int64_t> ecc_corrected, ecc_uncorrected;
  std::optional<int64_t> ecc_corrected_ever, ecc_uncorrected_ever;
  std::optional<int64_t> remapped_rows_corrected, remapped_rows_uncorrected;
  std::optional<bool> remap_failed;
  // Rows or pages that a reset, or loading the driver again, would put out of use.
  std::optional<bool> retirement_pending;
  std::optional<int> pcie_generation, pcie_lanes;
  std::optional<int> pcie_generation_limit, pcie_lanes_limit;
  std::optional<int> nvlinks_active, nvlinks;
  std::optional<ComputeMode> compute_mode;
  std::optional<bool> persistence;
  std::optional<bool> mig;
  std::optional<std::vector<GpuProcess>> processes;
};

// An error that the driver has reported of a GPU; what the numbers mean: common/gpus/gpu_faults.h.
struct GpuXid {
  size_t gpu = 0;  // its place in gpus().list
  int xid = 0;
};

class GpuSession {
 public:
  // NOT_FOUND where there is no driver. UNAVAILABLE when there is one that does not answer.
  static absl::StatusOr<std::unique_ptr<GpuSession>> Open();
  virtual ~GpuSession() = default;

  virtual const Gpus& gpus() const = 0;
  // A sample of each GPU, in their order.
  virtual std::vector<GpuSample> Sample() = 0;
  // Since the session was opened, or since the last call. Waits for none; none where the driver
  // reports no such events.
  virtual std::vector<GpuXid> TakeXids() = 0;
};

}  // namespace tercio
