// Findings about GPUs: from what the driver reports, and from measurements.
#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/commands/findings.h"
#include "common/gpus/gpu_faults.h"

namespace tercio::cli {
namespace {

using PlainJson = nlohmann::json;

// GPUs of data centres slow down by themselves a few degrees above this.
constexpr double kHotCelsius = 85;
// The driver and a desktop take some hundred megabytes, which is no reason to warn.
constexpr int64_t kMuchMemory = int64_t{1} << 30;
// Below this share of the rate of the best GPU of the same model, a GPU is slow.
constexpr double kSlowShare = 0.8;
// Below this share of what its generation and lanes can carry, a link is slow.
constexpr double kSlowLinkShare = 0.5;

Finding Make(std::string check, Health health, std::string detail, std::string mend = "") {
  return {std::move(check), health, std::move(detail), std::move(mend)};
}

// Bytes per second of one lane, by generation, from 1 on (PCI Express base specifications).
double PcieBytesPerSecond(int generation, int lanes) {
  // Generations after the last one known are at least as fast.
  constexpr double kLane[] = {0.25e9, 0.5e9, 0.985e9, 1.969e9, 3.938e9, 7.563e9};
  const int last = static_cast<int>(std::size(kLane));
  return generation < 1 ? 0 : kLane[std::min(generation, last) - 1] * lanes;
}

double Number(const PlainJson& object, const char* key) {
  // Reports may come from another version: a key that is missing or odd reads as 0.
  const auto found = object.find(key);
  return found != object.end() && found->is_number() ? found->get<double>() : 0;
}
std::string Text(const PlainJson& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

std::string Percent(double share) { return absl::StrFormat("%.0f %%", share * 100); }
std::string Gigabytes(double rate) { return absl::StrFormat("%.1f GB/s", rate / 1e9); }
std::string Teraflops(double rate) { return absl::StrFormat("%.2f TFLOP/s", rate / 1e12); }

class GpuDoctor {
 public:
  explicit GpuDoctor(const GpuEvidence& evidence) : evidence_(evidence) {}

  std::vector<Finding> Run() {
    // Without the driver no other question has an answer.
    if (!evidence_.gpus.ok()) {
      Add(Make("driver", Health::kError, std::string(evidence_.gpus.status().message()),
               "check the kernel log; reinstall or reload the driver, or restart the node"));
      return std::move(findings_);
    }
    // A machine without GPUs is healthy.
    if (evidence_.gpus->list.empty()) return {Make("gpu", Health::kOk, "no GPU")};
    CheckDriverAndLibraries();
    for (size_t i = 0; i < evidence_.gpus->list.size(); ++i) {
      // The driver may have failed in between, so that there are fewer samples than GPUs.
      const GpuSample none;
      const GpuSample& sample = i < evidence_.samples.size() ? evidence_.samples[i] : none;
      CheckGpu(evidence_.gpus->list[i], sample);
    }
    // Rates are measured by the trainer for GPUs, which may not be installed.
    if (evidence_.report.ok()) {
      CheckRates();
      CheckPeers();
    }
    return std::move(findings_);
  }

 private:
  void Add(Finding finding) { findings_.push_back(std::move(finding)); }
  static std::string Name(const Gpu& gpu) { return absl::StrCat("gpu ", gpu.index); }

  void CheckDriverAndLibraries() {
    const Gpus& gpus = *evidence_.gpus;
    std::string driver = absl::StrCat("NVIDIA ", gpus.driver);
    if (gpus.cuda_version > 0) {
      absl::StrAppend(&driver, ", runs CUDA ", CudaVersionText(gpus.cuda_version));
    }
    if (!evidence_.report.ok()) {
      Add(Make("driver", Health::kOk, driver));
      // The machine may train on CPUs, so that a missing trainer is no error.
      Add(Make("libraries", Health::kUnknown, std::string(evidence_.report.status().message()),
               "to measure rates, install the trainer for GPUs next to this program"));
      return;
    }
    const PlainJson& report = *evidence_.report;
    const auto runtime = static_cast<int>(Number(report, "cuda_runtime"));
    CheckDriver(driver, runtime);
    std::string libraries = absl::StrCat("CUDA ", CudaVersionText(runtime));
    for (const auto& [key, name] :
         {std::pair("nccl", "NCCL"), std::pair("cublas", "cuBLAS"), std::pair("cudnn", "cuDNN")}) {
      const std::string version = Text(report, key);
      absl::StrAppend(&libraries, ", ", name, " ", version.empty() ? "not found" : version);
    }
    Add(Make("libraries", Health::kOk, libraries));
    if (const std::string error = Text(report, "error"); !error.empty()) {
      Add(Make("cuda", Health::kError, error));
    }
  }

  // The trainer's libraries decide which driver is new enough.
  void CheckDriver(std::string driver, int runtime) {
    const absl::StatusOr<std::string>& folder = evidence_.driver_library;
    const std::string mend =
        "install a newer driver, or NVIDIA's package for forward compatibility";
    if (!folder.ok()) {
      return Add(Make("driver", Health::kError, std::string(folder.status().message()), mend));
    }
    if (folder->empty()) return Add(Make("driver", Health::kOk, driver));
    absl::StrAppend(&driver, "; for forward compatibility trainers load ", *folder);
    const auto loaded = static_cast<int>(Number(*evidence_.report, "cuda_driver"));
    const absl::Status fits =
        tercio::CheckDriver(absl::StrCat("library in ", *folder), loaded, runtime);
    Add(Make("driver", fits.ok() ? Health::kOk : Health::kError,
             fits.ok() ? driver : std::string(fits.message()), fits.ok() ? "" : mend));
  }

  void CheckGpu(const Gpu& gpu, const GpuSample& sample) {
    GpuCircumstances circumstances;
    circumstances.in_use = true;  // its memory is checked below
    const auto fault = FaultOf(gpu, sample, circumstances);
    std::string detail =
        absl::StrCat(gpu.model.empty() ? "unknown model" : gpu.model, ", ", gpu.uuid);
    if (sample.temperature_celsius.has_value()) {
      absl::StrAppend(&detail, absl::StrFormat(", %.0f degrees C", *sample.temperature_celsius));
    }
    if (sample.power_watts.has_value() && sample.power_limit_watts.has_value()) {
      absl::StrAppend(&detail, absl::StrFormat(", %.0f of %.0f W", *sample.power_watts,
                                               *sample.power_limit_watts));
    }
    if (fault.has_value()) {
      // The text says how to fix it, after its first colon.
      Add(Make(Name(gpu), Health::kError, absl::StrCat(detail, ": ", fault->text),
               "ranks are scheduled on it again once this is fixed"));
      // A GPU that ends its runs answers nothing else reliably.
      if (fault->ends_runs) return;
    } else {
      Add(Make(Name(gpu), Health::kOk, detail));
    }
    CheckMemory(gpu, sample);
    CheckErrors(gpu, sample);
    CheckClocksAndModes(gpu, sample);
    CheckLinks(gpu, sample);
  }

  void CheckMemory(const Gpu& gpu, const GpuSample& sample) {
    if (!sample.memory_total_bytes.has_value()) return;
    std::string detail = absl::StrCat(GibibytesText(*sample.memory_used_bytes), " of ",
                                      GibibytesText(*sample.memory_total_bytes), " in use");
    int64_t by_processes = 0;
    std::vector<std::string> names;
    if (sample.processes.has_value()) {
      for (const GpuProcess& process : *sample.processes) {
        by_processes += process.memory_bytes;
        names.push_back(absl::StrCat("process ", process.pid, process.name.empty() ? "" : " ",
                                     process.name, " ", GibibytesText(process.memory_bytes)));
      }
    }
    if (!names.empty()) absl::StrAppend(&detail, ": ", absl::StrJoin(names, ", "));
    // What processes hold counts, as memory of the driver itself is always in use.
    const bool taken = by_processes > kMuchMemory;
    Add(Make(Name(gpu) + " memory", taken ? Health::kWarning : Health::kOk, detail,
             taken
                 ? "fine if these are trainers; otherwise end them, or ranks will run out of memory"
                 : ""));
  }

  void CheckErrors(const Gpu& gpu, const GpuSample& sample) {
    const std::string check = Name(gpu) + " ecc";
    if (!sample.ecc_enabled.has_value()) {
      Add(Make(check, Health::kUnknown, "the GPU has no ECC, or the driver does not report it"));
    } else if (!*sample.ecc_enabled) {
      // Weights that were changed by a bit flip look like a diverged run much later.
      Add(Make(check, Health::kWarning, "off: memory errors go undetected",
               absl::StrCat("run nvidia-smi -i ", gpu.index, " -e 1 and restart the node")));
    } else if (sample.retirement_pending.value_or(false)) {
      Add(Make(
          check, Health::kWarning, "faulty memory is pending retirement",
          absl::StrCat("reset the GPU when it is idle: nvidia-smi --gpu-reset -i ", gpu.index)));
    } else {
      Add(Make(
          check, Health::kOk,
          absl::StrCat("on; errors since the driver was loaded: ", sample.ecc_corrected.value_or(0),
                       " corrected, ", sample.ecc_uncorrected.value_or(0), " uncorrected")));
    }
  }

  void CheckClocksAndModes(const Gpu& gpu, const GpuSample& sample) {
    std::vector<std::string> reasons;
    bool heat_or_power = false;
    for (const ClockReason& reason : ClockReasons()) {
      // Reasons that slow nothing are shown, but are no warning.
      if ((sample.clock_reasons.value_or(0) & reason.bit) == 0) continue;
      reasons.push_back(reason.name);
      // Reaching the power cap is normal under load.
      heat_or_power |= reason.slows && std::string(reason.name) != "power_cap";
    }
    if (sample.sm_clock_hertz.has_value()) {
      std::string detail = absl::StrFormat("%.0f MHz", *sample.sm_clock_hertz / 1e6);
      if (sample.sm_clock_limit_hertz.has_value()) {
        absl::StrAppend(&detail,
                        absl::StrFormat(" of %.0f MHz", *sample.sm_clock_limit_hertz / 1e6));
      }
      if (!reasons.empty()) absl::StrAppend(&detail, "; ", absl::StrJoin(reasons, ", "));
      const bool hot = sample.temperature_celsius.value_or(0) > kHotCelsius;
      Add(Make(Name(gpu) + " clocks", heat_or_power || hot ? Health::kWarning : Health::kOk, detail,
               heat_or_power || hot ? "check the cooling and power supply of the node" : ""));
    }
    // Loading the driver's state takes seconds at each start of a rank.
    if (sample.persistence.has_value() && !*sample.persistence) {
      Add(Make(Name(gpu) + " persistence", Health::kWarning,
               "off: the driver unloads an idle GPU's state, so that programs start slowly",
               "run nvidia-persistenced, or nvidia-smi -pm 1"));
    }
    // The agent examines GPUs beside the ranks that use them.
    if (sample.compute_mode == ComputeMode::kExclusive) {
      Add(Make(Name(gpu) + " compute mode", Health::kWarning,
               "exclusive: ranks cannot share the GPU or be examined while they run",
               absl::StrCat("run nvidia-smi -i ", gpu.index, " -c DEFAULT")));
    }
  }

  void CheckLinks(const Gpu& gpu, const GpuSample& sample) {
    // A lane is missing by a fault of the slot or the card; an idle link only lowers its speed.
    if (sample.pcie_lanes.has_value() && sample.pcie_lanes_limit.has_value() &&
        *sample.pcie_lanes < *sample.pcie_lanes_limit) {
      Add(Make(Name(gpu) + " pcie", Health::kWarning,
               absl::StrCat("the link has ", *sample.pcie_lanes, " of ", *sample.pcie_lanes_limit,
                            " lanes"),
               "check the slot, the riser and the BIOS"));
    }
    if (sample.nvlinks.has_value() && *sample.nvlinks_active < *sample.nvlinks) {
      Add(Make(Name(gpu) + " nvlink", Health::kWarning,
               absl::StrCat(*sample.nvlinks_active, " of ", *sample.nvlinks, " links are up"),
               "run nvidia-smi nvlink -s; check the bridge or the fabric manager"));
    }
  }

  // The best rate among GPUs of the same model, which all of them should reach.
  double Best(const std::string& name, const char* rate) const {
    // The best of this machine is the reference: published rates depend on power and cooling.
    double best = 0;
    for (const PlainJson& gpu : (*evidence_.report)["gpus"]) {
      if (Text(gpu, "name") == name) best = std::max(best, Number(gpu, rate));
    }
    return best;
  }

  void CheckRates() {
    if (!evidence_.report->contains("gpus")) return;
    for (const PlainJson& gpu : (*evidence_.report)["gpus"]) {
      const std::string name = absl::StrCat("cuda ", static_cast<int>(Number(gpu, "gpu")));
      if (const std::string error = Text(gpu, "error"); !error.empty()) {
        Add(Make(name, Health::kError, error));
        continue;
      }
      const double bf16 = Number(gpu, "bf16_flops");
      const double best = Best(Text(gpu, "name"), "bf16_flops");
      const bool slow = bf16 < kSlowShare * best;
      Add(Make(
          name + " products", slow ? Health::kWarning : Health::kOk,
          absl::StrCat("bf16 ", Teraflops(bf16), ", fp32 ", Teraflops(Number(gpu, "fp32_flops")),
                       slow ? absl::StrCat(": ", Percent(bf16 / best), " of the best") : ""),
          slow ? "every rank waits for the slowest: check its clocks, temperature and neighbours"
               : ""));
      CheckHostLink(name, gpu);
      if (gpu.contains("memory_plan")) {
        // The planned memory is compared with what a small training run has taken.
        Add(MemoryPlanFinding(name + " memory plan", gpu["memory_plan"]));
      }
    }
  }

  // The sample of the GPU with this CUDA number; null if there is none.
  const GpuSample* SampleOf(int number) const {
    for (size_t i = 0; i < evidence_.samples.size(); ++i) {
      // ShowToCuda leaves out GPUs that cannot be opened, so that CUDA's numbers skip them.
      if (evidence_.gpus->list[i].error.empty() && number-- == 0) return &evidence_.samples[i];
    }
    return nullptr;
  }

  void CheckHostLink(const std::string& name, const PlainJson& gpu) {
    const double to = Number(gpu, "host_to_device_bytes_per_second");
    const double from = Number(gpu, "device_to_host_bytes_per_second");
    double possible = 0;
    if (const GpuSample* sample = SampleOf(static_cast<int>(Number(gpu, "gpu")))) {
      possible = PcieBytesPerSecond(sample->pcie_generation_limit.value_or(0),
                                    // The generation is lowered while the link idles,
                                    // so that its limit counts; lanes stay.
                                    sample->pcie_lanes.value_or(0));
    }
    // Without a known link nothing can be said, and no rate is below 0.
    const bool slow = std::min(to, from) < kSlowLinkShare * possible;
    std::string detail =
        absl::StrCat("from the host ", Gigabytes(to), ", to the host ", Gigabytes(from));
    if (possible > 0) absl::StrAppend(&detail, ", the link can carry ", Gigabytes(possible));
    Add(Make(name + " host link", slow ? Health::kWarning : Health::kOk, detail,
             slow ? "check the slot, NUMA binding, and other users of the link" : ""));
  }

  void CheckPeers() {
    if (!evidence_.report->contains("peers")) return;
    int pairs = 0;
    double least = 0;
    double most = 0;
    std::vector<std::string> indirect;
    for (const PlainJson& pair : (*evidence_.report)["peers"]) {
      const auto from = static_cast<int>(Number(pair, "from"));
      const auto to = static_cast<int>(Number(pair, "to"));
      const std::string name = absl::StrCat("cuda ", from, " to ", to);
      if (const std::string error = Text(pair, "error"); !error.empty()) {
        Add(Make(name, Health::kError, error));
        continue;
      }
      const double rate = Number(pair, "bytes_per_second");
      // The first pair sets the range.
      least = pairs == 0 ? rate : std::min(least, rate);
      most = std::max(most, rate);
      ++pairs;
      if (!pair.value("direct", false)) indirect.push_back(absl::StrCat(from, " to ", to));
    }
    if (pairs == 0) return;
    std::string detail =
        absl::StrCat(pairs - static_cast<int>(indirect.size()), " of ", pairs, " pairs directly, ",
                     Gigabytes(least), " to ", Gigabytes(most));
    if (!indirect.empty()) {
      absl::StrAppend(&detail, "; through the host: ", absl::StrJoin(indirect, ", "));
    }
    // Paths through the host cost both the processor's memory and its time.
    Add(Make("peers", indirect.empty() ? Health::kOk : Health::kWarning, detail,
             indirect.empty()
                 ? ""
                 : "nvidia-smi topo -m shows the paths; check IOMMU and ACS in the BIOS"));
  }

  const GpuEvidence& evidence_;
  std::vector<Finding> findings_;
};

}  // namespace

std::vector<Finding> GpuFindings(const GpuEvidence& evidence) { return GpuDoctor(evidence).Run(); }

}  // namespace tercio::cli
