#include "common/gpus/gpu_faults.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace tercio {
namespace {

constexpr char kRestart[] = "restart the node";

struct Xid {
  int number;
  XidEffect effect;
  const char* name;
};

// The numbers and their meaning are from NVIDIA's documentation, "XID Errors".
constexpr Xid kXids[] = {
    {8, XidEffect::kProcess, "the GPU stopped processing"},
    {13, XidEffect::kProcess, "graphics engine exception"},
    {31, XidEffect::kProcess, "GPU memory page fault"},
    {32, XidEffect::kProcess, "invalid or corrupted push buffer"},
    {43, XidEffect::kProcess, "the GPU stopped processing"},
    {45, XidEffect::kProcess, "work was removed after another error"},
    {46, XidEffect::kEndsAll, "the GPU stopped processing"},
    {48, XidEffect::kNoNewWork, "double-bit ECC error"},
    {62, XidEffect::kEndsAll, "internal micro-controller halt"},
    {63, XidEffect::kNone, "a row of memory will be remapped"},
    {64, XidEffect::kNoNewWork, "a row of memory could not be remapped"},
    {74, XidEffect::kNoNewWork, "NVLink error"},
    {79, XidEffect::kEndsAll, "the GPU has fallen off the bus"},
    {92, XidEffect::kNone, "many single-bit ECC errors"},
    {94, XidEffect::kProcess, "contained memory error"},
    {95, XidEffect::kEndsAll, "uncontained memory error"},
    {109, XidEffect::kEndsAll, "context switch timeout"},
    {110, XidEffect::kEndsAll, "security fault"},
    {119, XidEffect::kEndsAll, "the GPU's system processor does not answer"},
    {120, XidEffect::kEndsAll, "error of the GPU's system processor"},
    {136, XidEffect::kNoNewWork, "link training failed"},
    {140, XidEffect::kEndsAll, "ECC error that was not recovered"},
    {143, XidEffect::kNoNewWork, "the GPU could not be initialised"},
    {156, XidEffect::kNoNewWork, "a part of the GPU was retired"},
    {158, XidEffect::kEndsAll, "fatal timeout"},
};

const Xid* FindXid(int number) {
  // A number that is not known is new, and its effect as well.
  const auto* const found = std::find_if(std::begin(kXids), std::end(kXids),
                                         [number](const Xid& xid) { return xid.number == number; });
  return found == std::end(kXids) ? nullptr : found;
}

std::string Reset(const Gpu& gpu) {
  // The agent keeps what it knew about a GPU until it is restarted.
  return absl::StrCat("reset it (nvidia-smi --gpu-reset -i ", gpu.index,
                      ") or restart the node, then restart the agent");
}

// CUDA errors that a program cannot cause by itself (CUDA runtime API, "cudaError").
constexpr std::string_view kDeviceErrors[] = {
    "cudaErrorInitializationError",
    "cudaErrorDevicesUnavailable",
    "cudaErrorNoDevice",
    "cudaErrorECCUncorrectable",
    "cudaErrorNvlinkUncorrectable",
    "cudaErrorContained",
    "cudaErrorSystemNotReady",
    "cudaErrorUnknown",
    "cudaErrorDeviceUninitialized",
};

std::optional<std::string> MemoryOfOthers(const GpuSample& sample, int64_t most) {
  if (!sample.processes.has_value()) return std::nullopt;
  int64_t bytes = 0;
  const GpuProcess* largest = nullptr;
  // All processes together decide; the largest is named, as it is the one to look at.
  for (const GpuProcess& process : *sample.processes) {
    bytes += process.memory_bytes;
    if (largest == nullptr || process.memory_bytes > largest->memory_bytes) largest = &process;
  }
  if (largest == nullptr || bytes <= most) return std::nullopt;
  return absl::StrCat("other processes use its memory, the largest process ", largest->pid,
                      largest->name.empty() ? "" : absl::StrCat(" (", largest->name, ")"),
                      "; end them, or allow for more with --gpu-others");
}

// The branch of drivers that a major version of CUDA came with (CUDA's release notes, table 3).
const char* FirstDriverOf(int major) {
  switch (major) {
    case 12:
      return "525";
    case 13:
      return "580";
    default:
      return "of its release";
  }
}

}  // namespace

// An unknown number must not take a GPU out of service.
XidEffect EffectOfXid(int xid) {
  const Xid* known = FindXid(xid);
  return known == nullptr ? XidEffect::kNone : known->effect;
}

bool IsOfDevice(int xid) {
  constexpr int kContainedMemoryError = 94;
  // A contained error ends one process, but its cause is in the memory.
  return EffectOfXid(xid) >= XidEffect::kNoNewWork || xid == kContainedMemoryError;
}

std::string DescribeXid(int xid) {
  const Xid* known = FindXid(xid);
  return known == nullptr ? absl::StrCat("XID ", xid)
                          : absl::StrCat("XID ", xid, " (", known->name, ")");
}

std::optional<GpuFault> FaultOf(const Gpu& gpu, const GpuSample& sample,
                                const GpuCircumstances& circumstances) {
  std::vector<int> xids = circumstances.xids;
  // The worst comes first; of two equal ones the earlier.
  std::stable_sort(xids.begin(), xids.end(),
                   [](int a, int b) { return EffectOfXid(a) > EffectOfXid(b); });
  if (!xids.empty() && EffectOfXid(xids.front()) >= XidEffect::kNoNewWork) {
    const int xid = xids.front();
    // A GPU that has left the bus cannot be reset.
    return GpuFault{absl::StrCat(DescribeXid(xid), ": ", xid == 79 ? kRestart : Reset(gpu)),
                    EffectOfXid(xid) == XidEffect::kEndsAll};
  }
  // The order is that of certainty: what is reported before what is measured.
  if (!gpu.error.empty()) return GpuFault{absl::StrCat(gpu.error, "; ", kRestart), true};
  if (sample.lost) return GpuFault{absl::StrCat("the driver has lost it: ", kRestart), true};
  if (sample.reset_required) {
    return GpuFault{absl::StrCat("the driver requires a reset: ", Reset(gpu)), true};
  }
  // A driver that does not answer may recover.
  if (!sample.error.empty()) {
    return GpuFault{absl::StrCat("the driver does not report its state: ", sample.error,
                                 "; check nvidia-smi and the kernel log"),
                    false};
  }
  if (sample.remap_failed.value_or(false)) {
    return GpuFault{"rows of its memory are faulty and could not be remapped: replace it", false};
  }
  // Counters begin again with the driver: a reset makes the GPU usable.
  if (sample.ecc_uncorrected.value_or(0) > 0) {
    return GpuFault{
        absl::StrCat("uncorrected ECC errors since the driver was loaded: ", Reset(gpu)), false};
  }
  // Parts of a GPU have other names and less memory than plans count on.
  if (sample.mig.value_or(false)) {
    return GpuFault{
        absl::StrCat("it is in MIG mode, which Tercio does not support: run nvidia-smi -i ",
                     gpu.index, " -mig 0"),
        false};
  }
  const ComputeMode mode = sample.compute_mode.value_or(ComputeMode::kDefault);
  if (mode == ComputeMode::kProhibited ||
      (mode == ComputeMode::kExclusive && circumstances.shared)) {
    return GpuFault{
        absl::StrCat("its compute mode is ",
                     mode == ComputeMode::kProhibited ? "prohibited"
                                                      : "exclusive, but ranks have to share it",
                     ": run nvidia-smi -i ", gpu.index, " -c DEFAULT"),
        false};
  }
  // While ranks run on it, its memory is theirs.
  if (!circumstances.in_use) {
    const auto taken = MemoryOfOthers(sample, circumstances.others_bytes);
    if (taken.has_value()) return GpuFault{*taken, false};
  }
  return std::nullopt;
}

absl::Status CheckDriver(const std::string& driver, int driver_cuda, int runtime) {
  // Within a major version any driver runs any program (CUDA's compatibility).
  if (driver_cuda == 0 || runtime == 0 || driver_cuda / 1000 >= runtime / 1000) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "the NVIDIA driver ", driver, " supports CUDA ", CudaVersionText(driver_cuda),
      ", but this program is built with CUDA ", CudaVersionText(runtime), ": install driver ",
      FirstDriverOf(runtime / 1000), " or newer, or build with CUDA ", driver_cuda / 1000));
}

std::string CudaVersionText(int version) {
  // CUDA encodes 12.4 as 12040.
  return absl::StrCat(version / 1000, ".", version % 1000 / 10);
}

std::string_view DeviceErrorIn(std::string_view text) {
  for (const std::string_view error : kDeviceErrors) {
    // The brackets keep a name from being found within a longer one.
    const std::string named = absl::StrCat("(", std::string(error), ")");
    if (text.find(named) != std::string_view::npos) return error;
  }
  return "";
}

std::string GibibytesText(int64_t bytes) {
  return absl::StrFormat("%.1f GiB", static_cast<double>(bytes) / (1 << 30));
}

}  // namespace tercio
