// The GPUs of this machine as reported by NVIDIA's driver, once (FindGpus) or repeatedly
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
  std::string error;         // why the driver reports no more of it; empty if it does
};

struct Gpus {
  std::string driver;     // version; empty if there is none
  int cuda_version = 0;   // the newest CUDA that the driver runs: 13020 is 13.2; 0: not known
  std::vector<Gpu> list;  // ascending by index
};

// Empty if there is no driver. UNAVAILABLE if there is one that does not answer.
absl::StatusOr<Gpus> FindGpus();

// The GPUs that a value of CUDA_VISIBLE_DEVICES selects, in the driver's order: numbers or prefixes
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
  int pid = 0;  // in the host's numbering; useless in a container with its own pid namespace
  int64_t memory_bytes = 0;
  std::string name;  // empty if this process cannot see it
};

// The state of a GPU at one moment. Values that it or its driver does not report are absent.
struct GpuSample {
  bool lost = false;            // fallen off the bus, or otherwise out of reach
  bool reset_required = false;  // it must be reset before it can be used again
  std::string error;            // why the driver reports nothing else of it; empty if it does
  std::optional<double> utilization_ratio;  // share of time with a kernel running
  std::optional<double>
      memory_utilization_ratio;  // share of time with memory being read or written
  std::optional<int64_t> memory_total_bytes;
  std::optional<int64_t> memory_used_bytes;
  std::optional<double> power_watts;
  std::optional<double> power_limit_watts;
  std::optional<double> temperature_celsius;
  std::optional<double> sm_clock_hertz;
  std::optional<double> sm_clock_limit_hertz;  // its maximum
  std::optional<double> memory_clock_hertz;
  std::optional<uint64_t> clock_reasons;  // bits of ClockReasons()
  std::optional<bool> ecc_enabled;
  // Counts since the driver was loaded, and over the GPU's lifetime.
  std::optional<int64_t> ecc_corrected, ecc_uncorrected;
  std::optional<int64_t> ecc_corrected_ever, ecc_uncorrected_ever;
  std::optional<int64_t> remapped_rows_corrected, remapped_rows_uncorrected;
  std::optional<bool> remap_failed;
  // Rows or pages that a reset, or reloading the driver, would retire.
  std::optional<bool> retirement_pending;
  std::optional<int> pcie_generation, pcie_lanes;
  std::optional<int> pcie_generation_limit, pcie_lanes_limit;
  std::optional<int> nvlinks_active, nvlinks;
  std::optional<ComputeMode> compute_mode;
  std::optional<bool> persistence;
  std::optional<bool> mig;
  std::optional<std::vector<GpuProcess>> processes;
};

// An error of a GPU that the driver has reported; common/gpus/gpu_faults.h explains the numbers.
struct GpuXid {
  size_t gpu = 0;  // its place in gpus().list
  int xid = 0;
};

class GpuSession {
 public:
  // NOT_FOUND if there is no driver. UNAVAILABLE if there is one that does not answer.
  static absl::StatusOr<std::unique_ptr<GpuSession>> Open();
  virtual ~GpuSession() = default;

  virtual const Gpus& gpus() const = 0;
  // A sample of each GPU, in their order.
  virtual std::vector<GpuSample> Sample() = 0;
  // Events since the session was opened, or since the last call. Does not wait; none if the driver
  // reports no such events.
  virtual std::vector<GpuXid> TakeXids() = 0;
};

}  // namespace tercio
