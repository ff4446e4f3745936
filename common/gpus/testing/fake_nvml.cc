// A fake NVML for tests, of a machine with two GPUs. Built as libnvidia-ml.so.1, and a second time
// without the functions that old drivers lack (TERCIO_OLD_NVML).
//
// The file that TERCIO_FAKE_NVML names sets the state of the GPUs; it is read at each call. A line
// is NAME VALUE or GPU.NAME VALUE [VALUE], where GPU is 0 or 1:
//   power, temperature, ecc_uncorrected, ...   in NVML's units, see kUsual
//   xid N              an event; each line is reported once, in order
//   lost 1             NVML_ERROR_GPU_IS_LOST from every call
//   unsupported NAME   NVML_ERROR_NOT_SUPPORTED for that value
//   process PID BYTES  a process with a context
//   hang 1             (without a GPU) every call blocks while the line is there
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace {

constexpr int kSuccess = 0;
constexpr int kNotSupported = 3;
constexpr int kInsufficientSize = 7;
constexpr int kTimeout = 10;
constexpr int kGpuIsLost = 15;
constexpr int kGpus = 2;
constexpr unsigned long long kXidEvents = 8;

struct Memory {
  unsigned long long total, free, used;
};
struct Process {
  unsigned int pid;
  unsigned long long used_bytes;
  unsigned int gpu_instance, compute_instance;
};

struct Line {
  std::string name;
  std::vector<std::string> values;
};

int devices[kGpus] = {0, 1};

// The file's lines about the GPU (-1: about none), in their order.
std::vector<Line> Lines(int gpu) {
  const char* path = std::getenv("TERCIO_FAKE_NVML");
  std::ifstream file(path == nullptr ? "/dev/null" : path);
  const std::string prefix = gpu < 0 ? "" : std::to_string(gpu) + ".";
  std::vector<Line> lines;
  std::string text;
  while (std::getline(file, text)) {
    std::istringstream words(text);
    Line line;
    words >> line.name;
    for (std::string word; words >> word;) line.values.push_back(word);
    const bool of_one = line.name.find('.') != std::string::npos;
    if (line.values.empty() || of_one != (gpu >= 0) || line.name.rfind(prefix, 0) != 0) continue;
    line.name = line.name.substr(prefix.size());
    lines.push_back(line);
  }
  return lines;
}

bool Hangs() {
  for (const Line& line : Lines(-1)) {
    if (line.name == "hang") return true;
  }
  return false;
}

struct Usual {
  const char* name;
  unsigned long long value;
};
constexpr Usual kUsual[] = {
    {"memory_total", 80ull << 30},
    {"memory_used", 1ull << 30},
    {"power", 250500},
    {"power_limit", 700000},
    {"temperature", 55},
    {"utilization", 90},
    {"memory_utilization", 40},
    {"sm_clock", 1755},
    {"memory_clock", 2619},
    {"max_sm_clock", 1980},
    {"clock_reasons", 4},
    {"ecc_mode", 1},
    {"pcie_generation", 5},
    {"pcie_width", 16},
    {"persistence", 1},
    {"nvlinks", 18},
    {"cuda_version", 13000},
};

unsigned long long Default(const std::string& name) {
  for (const Usual& usual : kUsual) {
    if (name == usual.name) return usual.value;
  }
  return 0;
}

// A value of a GPU, as the file has it, or as usual.
int Get(const int* device, const std::string& name, unsigned long long* out) {
  while (Hangs()) usleep(10'000);
  *out = Default(name);
  for (const Line& line : Lines(device == nullptr ? -1 : *device)) {
    if (line.name == "lost" && line.values[0] == "1") return kGpuIsLost;
    if (line.name == "unsupported" && line.values[0] == name) return kNotSupported;
    if (line.name == name) *out = std::strtoull(line.values[0].c_str(), nullptr, 10);
  }
  return kSuccess;
}

template <typename Number>
int GetNumber(const int* device, const std::string& name, Number* out) {
  unsigned long long value = 0;
  const int result = Get(device, name, &value);
  if (result == kSuccess) *out = static_cast<Number>(value);
  return result;
}

struct Events {
  size_t told[kGpus] = {};
};

std::vector<std::string> XidsOf(int gpu) {
  std::vector<std::string> xids;
  for (const Line& line : Lines(gpu)) {
    if (line.name == "xid") xids.push_back(line.values[0]);
  }
  return xids;
}

}  // namespace

extern "C" {

struct nvmlEventData {
  int* device;
  unsigned long long type, data;
  unsigned int gpu_instance, compute_instance;
};

int nvmlInit_v2() {
  while (Hangs()) usleep(10'000);
  return kSuccess;
}
int nvmlShutdown() { return kSuccess; }
const char* nvmlErrorString(int) { return "an error"; }
int nvmlSystemGetDriverVersion(char* text, unsigned int bytes) {
  std::snprintf(text, bytes, "580.1");
  return kSuccess;
}
int nvmlDeviceGetCount_v2(unsigned int* count) {
  *count = kGpus;
  return kSuccess;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, int** device) {
  *device = &devices[index];
  unsigned long long none = 0;
  return Get(*device, "handle", &none);
}
int nvmlDeviceGetName(int* device, char* text, unsigned int bytes) {
  std::string model = "Fake GPU";
  for (const Line& line : Lines(*device)) {
    if (line.name == "model") model = line.values[0];
  }
  std::snprintf(text, bytes, "%s", model.c_str());
  return kSuccess;
}
int nvmlDeviceGetUUID(int* device, char* text, unsigned int bytes) {
  std::snprintf(text, bytes, "GPU-%d", *device);
  return kSuccess;
}
int nvmlDeviceGetMemoryInfo(int* device, Memory* memory) {
  unsigned long long used = 0;
  if (const int result = Get(device, "memory_used", &used); result != kSuccess) return result;
  const int result = Get(device, "memory_total", &memory->total);
  memory->used = used;
  memory->free = memory->total - used;
  return result;
}

#ifndef TERCIO_OLD_NVML
int nvmlSystemGetCudaDriverVersion_v2(int* version) {
  return GetNumber(nullptr, "cuda_version", version);
}
int nvmlDeviceGetUtilizationRates(int* device, unsigned int* two) {
  const int result = GetNumber(device, "utilization", &two[0]);
  return result != kSuccess ? result : GetNumber(device, "memory_utilization", &two[1]);
}
int nvmlDeviceGetPowerUsage(int* device, unsigned int* out) {
  return GetNumber(device, "power", out);
}
int nvmlDeviceGetEnforcedPowerLimit(int* device, unsigned int* out) {
  return GetNumber(device, "power_limit", out);
}
int nvmlDeviceGetTemperature(int* device, unsigned int, unsigned int* out) {
  return GetNumber(device, "temperature", out);
}
int nvmlDeviceGetClockInfo(int* device, unsigned int kind, unsigned int* out) {
  return GetNumber(device, kind == 2 ? "memory_clock" : "sm_clock", out);
}
int nvmlDeviceGetMaxClockInfo(int* device, unsigned int, unsigned int* out) {
  return GetNumber(device, "max_sm_clock", out);
}
int nvmlDeviceGetCurrentClocksEventReasons(int* device, unsigned long long* out) {
  return GetNumber(device, "clock_reasons", out);
}
int nvmlDeviceGetEccMode(int* device, unsigned int* now, unsigned int* later) {
  *later = 1;
  return GetNumber(device, "ecc_mode", now);
}
int nvmlDeviceGetTotalEccErrors(int* device, unsigned int type, unsigned int counter,
                                unsigned long long* out) {
  const std::string name = type == 1 ? "ecc_uncorrected" : "ecc_corrected";
  return GetNumber(device, counter == 1 ? name + "_ever" : name, out);
}
int nvmlDeviceGetRemappedRows(int* device, unsigned int* corrected, unsigned int* uncorrected,
                              unsigned int* pending, unsigned int* failed) {
  GetNumber(device, "rows_corrected", corrected);
  GetNumber(device, "rows_uncorrected", uncorrected);
  GetNumber(device, "rows_pending", pending);
  return GetNumber(device, "rows_failed", failed);
}
int nvmlDeviceGetRetiredPagesPendingStatus(int*, unsigned int*) { return kNotSupported; }
int nvmlDeviceGetCurrPcieLinkGeneration(int* device, unsigned int* out) {
  return GetNumber(device, "pcie_generation", out);
}
int nvmlDeviceGetCurrPcieLinkWidth(int* device, unsigned int* out) {
  return GetNumber(device, "pcie_width", out);
}
int nvmlDeviceGetMaxPcieLinkGeneration(int*, unsigned int* out) {
  *out = 5;
  return kSuccess;
}
int nvmlDeviceGetMaxPcieLinkWidth(int*, unsigned int* out) {
  *out = 16;
  return kSuccess;
}
int nvmlDeviceGetNvLinkState(int* device, unsigned int link, unsigned int* active) {
  unsigned int links = 0;
  const int result = GetNumber(device, "nvlinks", &links);
  *active = 1;
  return result != kSuccess ? result : link < links ? kSuccess : kNotSupported;
}
int nvmlDeviceGetComputeMode(int* device, unsigned int* out) {
  return GetNumber(device, "compute_mode", out);
}
int nvmlDeviceGetPersistenceMode(int* device, unsigned int* out) {
  return GetNumber(device, "persistence", out);
}
int nvmlDeviceGetMigMode(int* device, unsigned int* now, unsigned int* later) {
  *later = 0;
  return GetNumber(device, "mig", now);
}
int nvmlDeviceGetComputeRunningProcesses_v3(int* device, unsigned int* count, Process* out) {
  unsigned int found = 0;
  const unsigned int room = *count;
  for (const Line& line : Lines(*device)) {
    if (line.name != "process" || line.values.size() < 2) continue;
    if (found < room) {
      out[found] = {static_cast<unsigned int>(std::stoul(line.values[0])),
                    std::stoull(line.values[1]), ~0u, ~0u};
    }
    ++found;
  }
  *count = found;
  return found <= room ? kSuccess : kInsufficientSize;
}
int nvmlEventSetCreate(Events** set) {
  *set = new Events;
  return kSuccess;
}
int nvmlEventSetFree(Events* set) {
  delete set;
  return kSuccess;
}
// Earlier events are not reported.
int nvmlDeviceRegisterEvents(int* device, unsigned long long types, Events* set) {
  if (types != kXidEvents) return kNotSupported;
  set->told[*device] = XidsOf(*device).size();
  return kSuccess;
}
int nvmlEventSetWait_v2(Events* set, nvmlEventData* data, unsigned int) {
  while (Hangs()) usleep(10'000);
  for (int gpu = 0; gpu < kGpus; ++gpu) {
    const std::vector<std::string> xids = XidsOf(gpu);
    if (xids.size() <= set->told[gpu]) continue;
    *data = {&devices[gpu], kXidEvents, std::stoull(xids[set->told[gpu]++]), ~0u, ~0u};
    return kSuccess;
  }
  return kTimeout;
}
#endif

}  // extern "C"
