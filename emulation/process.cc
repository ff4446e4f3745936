#include <cstdio>
#include <cstdlib>

#include "common/check.h"
#include "emulation/device.h"

namespace tercio::emulation {

Process& Process::Get() {
  static Process process;
  return process;
}

Process::Process() {
  Configure(Settings());
  int error = 0;
  char call[64] = "";
  long long after = 0;
  const char* fault = std::getenv("TERCIO_EMULATED_FAULT");
  if (fault == nullptr) return;
  TERCIO_CHECK_EQ(std::sscanf(fault, "%d %63s %lld", &error, call, &after), 3);
  faults.push_back({static_cast<cudaError_t>(error), call, after, 0});
}

Process::~Process() {
  stop_ = true;
  if (watcher_.joinable()) watcher_.join();
  const std::string report = MemoryReport();
  if (!report.empty()) std::fprintf(stderr, "emulated CUDA: at exit\n%s", report.c_str());
}

void Process::Configure(const Settings& new_settings) {
  TERCIO_CHECK_GT(new_settings.devices, 0);
  stop_ = true;
  if (watcher_.joinable()) watcher_.join();
  stop_ = false;
  devices.clear();
  pinned.Clear();
  executables.clear();
  graphs.clear();
  events.clear();
  streams.clear();
  captures.clear();
  faults.clear();
  settings = new_settings;
  kernels = 0;
  works = 0;
  graph_launches = 0;
  ++generation;
  for (int i = 0; i < settings.devices; ++i) {
    devices.push_back(std::make_unique<Device>(i, settings));
  }
  if (settings.progress_after_milliseconds > 0) {
    watcher_ = std::thread([this] { WatchIdleDevices(); });
  }
}

void Process::WatchIdleDevices() {
  const std::chrono::milliseconds limit(settings.progress_after_milliseconds);
  while (!stop_) {
    bool progress = false;
    for (const auto& device : devices) {
      bool due = false;
      {
        std::lock_guard lock(device->mutex);
        due = !device->Idle() && std::chrono::steady_clock::now() - device->last_run > limit;
      }
      while (due && !stop_ && device->RunOne(nullptr)) progress = true;
    }
    if (!progress) std::this_thread::sleep_for(limit / 4 + std::chrono::microseconds(100));
  }
}

ThreadState& TheThread() {
  static thread_local ThreadState state;
  const uint64_t generation = Process::Get().generation;
  if (state.generation != generation) state = {generation, 0, cudaSuccess};
  return state;
}

Device* Process::CurrentDevice() { return &device(TheThread().device); }

cudaError_t TakeFault(int device, const char* call) {
  Process& process = Process::Get();
  std::lock_guard lock(process.mutex);
  for (auto fault = process.faults.begin(); fault != process.faults.end(); ++fault) {
    if (fault->device != device || fault->call != call) continue;
    if (fault->after-- > 0) continue;
    const cudaError_t error = fault->error;
    process.faults.erase(fault);
    return error;
  }
  return cudaSuccess;
}

cudaError_t Enter(const char* call) {
  if (RunsWork()) return cudaErrorNotPermitted;
  Device& device = *Process::Get().CurrentDevice();
  if (device.fault() != cudaSuccess) return device.fault();
  const cudaError_t error = TakeFault(device.index, call);
  if (IsSticky(error)) device.Fail(error);
  return error;
}

cudaError_t Return(cudaError_t error) {
  if (error != cudaSuccess) TheThread().last_error = error;
  return error;
}

bool IsSticky(cudaError_t error) {
  switch (error) {
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorLaunchFailure:
    case cudaErrorUnknown:
      return true;
    default:
      return false;
  }
}

CUstream_st* FindStream(cudaStream_t handle) {
  Process& process = Process::Get();
  std::lock_guard lock(process.mutex);
  const auto found = process.streams.find(handle);
  return found == process.streams.end() || found->second->destroyed ? nullptr : found->first;
}

CUevent_st* FindEvent(cudaEvent_t handle) {
  Process& process = Process::Get();
  std::lock_guard lock(process.mutex);
  return process.events.contains(handle) ? handle : nullptr;
}

bool CapturesHere() {
  Process& process = Process::Get();
  std::lock_guard lock(process.mutex);
  std::erase_if(process.captures, [](const auto& capture) { return capture.expired(); });
  for (const auto& weak : process.captures) {
    const std::shared_ptr<Capture> capture = weak.lock();
    if (capture == nullptr || capture->mode == cudaStreamCaptureModeRelaxed) continue;
    if (capture->mode == cudaStreamCaptureModeThreadLocal &&
        capture->thread != std::this_thread::get_id()) {
      continue;
    }
    capture->invalid = true;
    return true;
  }
  return false;
}

cudaError_t Submit(cudaStream_t handle, Work work) {
  CUstream_st* stream = FindStream(handle);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (stream->device != TheThread().device) return cudaErrorInvalidResourceHandle;
  if (stream->capture != nullptr) {
    if (stream->capture->invalid) return cudaErrorStreamCaptureInvalidated;
    stream->capture->lines[static_cast<size_t>(stream->line)].push_back({std::move(work)});
    return cudaSuccess;
  }
  return Process::Get().device(stream->device).Enqueue(*stream, std::move(work));
}

void Configure(const Settings& settings) { Process::Get().Configure(settings); }

void SetOrders(const Orders& orders) {
  Process& process = Process::Get();
  std::lock_guard lock(process.mutex);
  process.settings.orders = orders;
}

void SetStreamOrder(StreamOrder order, uint64_t seed) {
  for (const auto& device : Process::Get().devices) {
    std::lock_guard lock(device->mutex);
    device->order = order;
    device->random = seed + static_cast<uint64_t>(device->index);
  }
}

std::string MemoryReport() {
  Process& process = Process::Get();
  std::lock_guard lock(process.mutex);
  std::string report;
  for (const auto& device : process.devices) report += device->memory.Report();
  return report + process.pinned.Report();
}

void InjectFault(const Fault& fault) {
  Process& process = Process::Get();
  std::lock_guard lock(process.mutex);
  process.faults.push_back(fault);
}

cudaError_t EnqueueWork(cudaStream_t stream, const char* what, std::function<bool()> step,
                        int64_t microseconds) {
  if (const cudaError_t error = Enter(what); error != cudaSuccess) return Return(error);
  Device& device = Process::Get().device(TheThread().device);
  return Return(
      Submit(stream, {WorkKind::kLibrary, [step = std::move(step), microseconds, &device] {
                        if (step()) {
                          device.Spend(microseconds);
                          return Progress::kDone;
                        }
                        WaitsForOtherDevice();
                        return Progress::kWaiting;
                      }}));
}

bool LiesOnDevice(int device, const void* pointer, size_t bytes, const char* user) {
  Device& owner = Process::Get().device(device);
  std::lock_guard lock(owner.mutex);
  return owner.memory.Contains(pointer, bytes, user);
}

Counts GetCounts() {
  return {Process::Get().kernels, Process::Get().works, Process::Get().graph_launches};
}

}  // namespace tercio::emulation
