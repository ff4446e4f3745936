#include "common/gpus/gpus.h"

#include <algorithm>
#include <fstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/gpus/nvml.h"
#include "common/status_macros.h"

namespace tercio {
namespace {

absl::StatusOr<Gpus> Read(const nvml::Functions& nvml, std::vector<nvml::Device>* devices) {
  const auto check = [&](int result, const char* what) {
    if (result == nvml::kSuccess) return absl::OkStatus();
    return absl::UnavailableError(absl::StrCat("the NVIDIA driver does not report ", what, ": ",
                                               nvml.error_string(result), "; check nvidia-smi"));
  };
  Gpus gpus;
  char text[nvml::kTextBytes] = "";
  TERCIO_RETURN_IF_ERROR(check(nvml.driver_version(text, nvml::kTextBytes), "its version"));
  gpus.driver = text;
  // The function is newer than the rest, so that its failure means that it is not known.
  if (nvml.cuda_version != nullptr && nvml.cuda_version(&gpus.cuda_version) != nvml::kSuccess) {
    gpus.cuda_version = 0;
  }
  unsigned int count = 0;
  TERCIO_RETURN_IF_ERROR(check(nvml.device_count(&count), "the number of GPUs"));
  for (unsigned int i = 0; i < count; ++i) {
    nvml::Device device = nullptr;
    nvml::Memory memory = {};
    // A GPU that cannot be read keeps its place: positions are the driver's indices.
    Gpu& gpu = gpus.list.emplace_back();
    gpu.index = static_cast<int>(i);
    // A lost GPU must not hide the others.
    absl::Status status = check(nvml.device_by_index(i, &device), "anything about the GPU");
    if (status.ok()) {
      status = check(nvml.device_name(device, text, nvml::kTextBytes), "the GPU's name");
      if (status.ok()) gpu.model = text;
    }
    if (status.ok()) {
      status = check(nvml.device_uuid(device, text, nvml::kTextBytes), "the GPU's UUID");
      if (status.ok()) gpu.uuid = text;
    }
    if (status.ok()) {
      // A GPU that shares the host's memory has none of its own.
      const int result = nvml.device_memory(device, &memory);
      if (result != nvml::kNotSupported) status = check(result, "the GPU's memory");
    }
    gpu.memory_bytes = static_cast<int64_t>(memory.total);
    gpu.error = std::string(status.message());
    // A model without the rest of its facts would look like a GPU that can be used.
    if (!status.ok()) gpu.model.clear();
    devices->push_back(device);
  }
  return gpus;
}

// Reads values of one GPU, and keeps the first result that reports it as lost.
class Reader {
 public:
  Reader(nvml::Device device, GpuSample* sample) : device_(device), sample_(sample) {}

  bool Good(int result) {
    // Both codes may come from any call, so that every result passes here.
    sample_->lost |= result == nvml::kGpuIsLost;
    sample_->reset_required |= result == nvml::kResetRequired;
    return result == nvml::kSuccess;
  }
  // An unsigned value, times `factor`.
  template <typename Out, typename... Parameters, typename... Arguments>
  void Get(std::optional<Out>* out, double factor, int (*function)(nvml::Device, Parameters...),
           Arguments... arguments) {
    unsigned int value = 0;
    // A function that the library does not have, or the GPU does not support, leaves no value.
    if (function == nullptr || !Good(function(device_, arguments..., &value))) return;
    *out = static_cast<Out>(value * factor);
  }
  void Flag(std::optional<bool>* out, int (*function)(nvml::Device, unsigned int*)) {
    unsigned int value = 0;
    if (function != nullptr && Good(function(device_, &value))) *out = value != 0;
  }
  // Reads the first of two values: the current mode, not the pending one.
  void Flag(std::optional<bool>* out, int (*function)(nvml::Device, unsigned int*, unsigned int*)) {
    unsigned int now = 0;
    unsigned int later = 0;
    if (function != nullptr && Good(function(device_, &now, &later))) *out = now != 0;
  }

 private:
  nvml::Device device_;
  GpuSample* sample_;
};

void SampleLoad(const nvml::Functions& nvml, nvml::Device device, Reader& reader,
                GpuSample* sample) {
  nvml::Memory memory = {};
  const int result = nvml.device_memory(device, &memory);
  if (reader.Good(result)) {
    sample->memory_total_bytes = static_cast<int64_t>(memory.total);
    sample->memory_used_bytes = static_cast<int64_t>(memory.used);
  } else if (!sample->lost && !sample->reset_required && result != nvml::kNotSupported) {
    // A GPU without memory of its own is not ill, which the condition leaves out.
    sample->error = nvml.error_string(result);
  }
  nvml::Utilization utilization = {};
  if (nvml.utilization != nullptr && reader.Good(nvml.utilization(device, &utilization))) {
    // The driver reports percents, milliwatts and megahertz; metrics are in base units.
    sample->utilization_ratio = utilization.gpu / 100.0;
    sample->memory_utilization_ratio = utilization.memory / 100.0;
  }
  reader.Get(&sample->power_watts, 1e-3, nvml.power);
  reader.Get(&sample->power_limit_watts, 1e-3, nvml.power_limit);
  reader.Get(&sample->temperature_celsius, 1, nvml.temperature, nvml::kDieTemperature);
  reader.Get(&sample->sm_clock_hertz, 1e6, nvml.clock, nvml::kSmClock);
  reader.Get(&sample->sm_clock_limit_hertz, 1e6, nvml.max_clock, nvml::kSmClock);
  reader.Get(&sample->memory_clock_hertz, 1e6, nvml.clock, nvml::kMemoryClock);
  unsigned long long reasons = 0;
  if (nvml.clock_reasons != nullptr && reader.Good(nvml.clock_reasons(device, &reasons))) {
    sample->clock_reasons = reasons;
  }
}

void SampleErrors(const nvml::Functions& nvml, nvml::Device device, Reader& reader,
                  GpuSample* sample) {
  reader.Flag(&sample->ecc_enabled, nvml.ecc_mode);
  const auto count = [&](unsigned int type, unsigned int counter, std::optional<int64_t>* out) {
    unsigned long long errors = 0;
    // Without ECC the counters exist and count nothing.
    if (nvml.ecc_errors != nullptr && sample->ecc_enabled.value_or(false) &&
        reader.Good(nvml.ecc_errors(device, type, counter, &errors))) {
      *out = static_cast<int64_t>(errors);
    }
  };
  count(nvml::kCorrected, nvml::kSinceDriverLoad, &sample->ecc_corrected);
  count(nvml::kUncorrected, nvml::kSinceDriverLoad, &sample->ecc_uncorrected);
  count(nvml::kCorrected, nvml::kSinceManufacture, &sample->ecc_corrected_ever);
  count(nvml::kUncorrected, nvml::kSinceManufacture, &sample->ecc_uncorrected_ever);
  // The four values come from one call.
  unsigned int corrected = 0;
  unsigned int uncorrected = 0;
  unsigned int pending = 0;
  unsigned int failed = 0;
  if (nvml.remapped_rows != nullptr &&
      reader.Good(nvml.remapped_rows(device, &corrected, &uncorrected, &pending, &failed))) {
    sample->remapped_rows_corrected = corrected;
    sample->remapped_rows_uncorrected = uncorrected;
    sample->retirement_pending = pending != 0;
    sample->remap_failed = failed != 0;
  } else {
    // GPUs before Ampere retire pages instead.
    reader.Flag(&sample->retirement_pending, nvml.retired_pages_pending);
  }
}

void SampleLinksAndModes(const nvml::Functions& nvml, nvml::Device device, Reader& reader,
                         GpuSample* sample) {
  reader.Get(&sample->pcie_generation, 1, nvml.pcie_generation);
  reader.Get(&sample->pcie_lanes, 1, nvml.pcie_width);
  reader.Get(&sample->pcie_generation_limit, 1, nvml.max_pcie_generation);
  reader.Get(&sample->pcie_lanes_limit, 1, nvml.max_pcie_width);
  // The number of links is not asked for: the first that fails ends them.
  for (unsigned int link = 0; nvml.link_state != nullptr && link < nvml::kMostLinks; ++link) {
    unsigned int active = 0;
    if (!reader.Good(nvml.link_state(device, link, &active))) break;  // it has no more
    sample->nvlinks = sample->nvlinks.value_or(0) + 1;
    sample->nvlinks_active = sample->nvlinks_active.value_or(0) + (active != 0 ? 1 : 0);
  }
  std::optional<int> mode;
  reader.Get(&mode, 1, nvml.compute_mode);
  if (mode.has_value()) {
    sample->compute_mode = *mode == 0   ? ComputeMode::kDefault
                           : *mode == 2 ? ComputeMode::kProhibited
                                        : ComputeMode::kExclusive;
  }
  reader.Flag(&sample->persistence, nvml.persistence_mode);
  reader.Flag(&sample->mig, nvml.mig_mode);
}

std::string NameOf(int pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/comm"));
  std::string name;
  std::getline(file, name);
  // Names of processes are chosen by their users, and are shown on terminals.
  for (char& c : name) c = c < 32 || c > 126 ? '?' : c;
  return name;
}

void SampleProcesses(const nvml::Functions& nvml, nvml::Device device, Reader& reader,
                     GpuSample* sample) {
  if (nvml.processes == nullptr) return;
  unsigned int count = 64;
  std::vector<nvml::ProcessInfo> infos(count);
  // The size is a guess, and the call says how many there are.
  int result = nvml.processes(device, &count, infos.data());
  if (result == nvml::kInsufficientSize) {
    count *= 2;  // more may have started meanwhile
    infos.resize(count);
    result = nvml.processes(device, &count, infos.data());
  }
  if (!reader.Good(result)) return;
  sample->processes.emplace();
  // The call has set the count to what it has returned.
  for (unsigned int i = 0; i < count; ++i) {
    // Processes in other containers may be hidden from this one.
    if (infos[i].used_bytes == nvml::kNoValue) continue;
    const int pid = static_cast<int>(infos[i].pid);
    sample->processes->push_back({pid, static_cast<int64_t>(infos[i].used_bytes), NameOf(pid)});
  }
}

class NvmlSession : public GpuSession {
 public:
  NvmlSession(std::unique_ptr<nvml::Library> library, Gpus gpus, std::vector<nvml::Device> devices)
      : library_(std::move(library)),
        nvml_(library_->functions()),
        gpus_(std::move(gpus)),
        devices_(std::move(devices)) {
    // Events are listened for from the start, so that none is lost before the first question.
    ListenForXids();
  }
  ~NvmlSession() override {
    if (events_ != nullptr && nvml_.event_set_free != nullptr) nvml_.event_set_free(events_);
  }

  const Gpus& gpus() const override { return gpus_; }

  std::vector<GpuSample> Sample() override {
    std::vector<GpuSample> samples(devices_.size());
    for (size_t i = 0; i < devices_.size(); ++i) {
      GpuSample& sample = samples[i];
      Reader reader(devices_[i], &sample);
      // No handle was given out for it, so that no call could be made.
      if (devices_[i] == nullptr) {
        sample.lost = true;
        continue;
      }
      SampleLoad(nvml_, devices_[i], reader, &sample);
      if (sample.lost || !sample.error.empty()) continue;  // each further call may take long
      SampleErrors(nvml_, devices_[i], reader, &sample);
      SampleLinksAndModes(nvml_, devices_[i], reader, &sample);
      SampleProcesses(nvml_, devices_[i], reader, &sample);
    }
    return samples;
  }

  std::vector<GpuXid> TakeXids() override {
    std::vector<GpuXid> xids;
    nvml::EventData data = {};
    // Nothing is waited for: this is asked between heartbeats.
    while (events_ != nullptr && nvml_.event_wait(events_, &data, 0) == nvml::kSuccess) {
      const auto found = std::find(devices_.begin(), devices_.end(), data.device);
      if (data.type != nvml::kXidEvents || found == devices_.end()) continue;
      xids.push_back({static_cast<size_t>(found - devices_.begin()), static_cast<int>(data.data)});
    }
    return xids;
  }

 private:
  void ListenForXids() {
    if (nvml_.event_set_create == nullptr || nvml_.event_register == nullptr ||
        nvml_.event_wait == nullptr || nvml_.event_set_create(&events_) != nvml::kSuccess) {
      events_ = nullptr;
      return;
    }
    for (const nvml::Device device : devices_) {
      // A GPU without such events reports none.
      if (device != nullptr) nvml_.event_register(device, nvml::kXidEvents, events_);
    }
  }

  const std::unique_ptr<nvml::Library> library_;
  const nvml::Functions& nvml_;
  const Gpus gpus_;
  const std::vector<nvml::Device> devices_;
  nvml::EventSet events_ = nullptr;
};

bool Names(const std::string& word, const Gpu& gpu) {
  int index = 0;
  // CUDA accepts indices and beginnings of UUIDs.
  if (absl::SimpleAtoi(word, &index)) return gpu.index == index;
  return !word.empty() && gpu.uuid.starts_with(word);
}

}  // namespace

absl::StatusOr<Gpus> FindGpus() {
  const auto library = nvml::Library::Load();
  // A machine without a driver has no GPUs, which is no error.
  if (absl::IsNotFound(library.status())) return Gpus();
  TERCIO_RETURN_IF_ERROR(library.status());
  std::vector<nvml::Device> devices;
  return Read((*library)->functions(), &devices);
}

Gpus VisibleGpus(Gpus gpus, const std::string& visible) {
  std::vector<Gpu> left;
  for (const absl::string_view part : absl::StrSplit(visible, ',')) {
    const std::string word(absl::StripAsciiWhitespace(part));
    const auto found = std::find_if(gpus.list.begin(), gpus.list.end(),
                                    [&](const Gpu& gpu) { return Names(word, gpu); });
    // CUDA ignores everything behind a name that it does not know.
    if (found == gpus.list.end()) break;
    left.push_back(*found);
  }
  // The order of the driver is kept, in which agents count.
  std::sort(left.begin(), left.end(), [](const Gpu& a, const Gpu& b) { return a.index < b.index; });
  gpus.list = std::move(left);
  return gpus;
}

const std::vector<ClockReason>& ClockReasons() {
  // The bits are NVML's (nvmlClocksEventReason constants).
  static const auto* const reasons = new std::vector<ClockReason>{
      {0x1, "idle", false},
      {0x2, "application_clocks", false},
      {0x4, "power_cap", true},
      {0x8, "hardware_slowdown", true},
      {0x10, "sync_boost", false},
      {0x20, "thermal_slowdown", true},
      {0x40, "hardware_thermal_slowdown", true},
      {0x80, "power_brake", true},
      {0x100, "display_clocks", false},
  };
  return *reasons;
}

absl::StatusOr<std::unique_ptr<GpuSession>> GpuSession::Open() {
  TERCIO_ASSIGN_OR_RETURN(auto library, nvml::Library::Load());
  std::vector<nvml::Device> devices;
  TERCIO_ASSIGN_OR_RETURN(Gpus gpus, Read(library->functions(), &devices));
  return std::unique_ptr<GpuSession>(
      std::make_unique<NvmlSession>(std::move(library), std::move(gpus), std::move(devices)));
}

}  // namespace tercio
