#include <algorithm>
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
  // A program under test cannot be called by the test, and gets its fault this way.
  const char* fault = std::getenv("TERCIO_EMULATED_FAULT");
  if (fault == nullptr) return;
  // A fault that cannot be read must not be ignored, or the test would pass without it.
  TERCIO_CHECK_EQ(std::sscanf(fault, "%d %63s %lld", &error, call, &after), 3);
  faults.push_back({static_cast<cudaError_t>(error), call, after, 0});
}

Process::~Process() {
  // The watcher uses the devices, so it ends before them.
  stop_ = true;
  if (watcher_.joinable()) watcher_.join();
  const std::string report = MemoryReport();
  if (!report.empty()) std::fprintf(stderr, "emulated CUDA: at exit\n%s", report.c_str());
}

void Process::Configure(const Settings& new_settings) {
  TERCIO_CHECK_GT(new_settings.devices, 0);
  // The watcher of the previous settings looks at devices that go away now.
  stop_ = true;
  if (watcher_.joinable()) watcher_.join();
  stop_ = false;
  // Devices go first, since their queues refer to streams and events.
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
  // Threads notice by the generation that what they remember is gone.
  ++generation;
  for (int i = 0; i < settings.devices; ++i) {
    devices.push_back(std::make_unique<Device>(i, settings));
  }
  // Most tests want no second thread, so that their order is the same at each run.
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
        // Work that somebody waits for runs by itself, and must not be disturbed.
        due = !device->Idle() && std::chrono::steady_clock::now() - device->last_run > limit;
      }
      while (due && !stop_ && device->RunOne(nullptr)) progress = true;
    }
    if (!progress) std::this_thread::sleep_for(limit / 4 + std::chrono::microseconds(100));
  }
}

ThreadState& TheThread() {
  // CUDA keeps the current device and the last error for each thread.
  static thread_local ThreadState state;
  const uint64_t generation = Process::Get().generation;
  if (state.generation != generation) state = {generation, 0, cudaSuccess};
  return state;
}

Device* Process::CurrentDevice() { return &device(TheThread().device); }

cudaError_t TakeFault(int device, const char* call) {
  // Faults may be injected by one thread while another runs.
  Process& process = Process::Get();
  std::lock_guard lock(process.mutex);
  for (auto fault = process.faults.begin(); fault != process.faults.end(); ++fault) {
    if (fault->device != device || fault->call != call) continue;
    // The call is counted even if the fault does not happen yet.
    if (fault->after-- > 0) continue;
    const cudaError_t error = fault->error;
    process.faults.erase(fault);
    return error;
  }
  return cudaSuccess;
}

cudaError_t Enter(const char* call) {
  // Work must not call CUDA, as callbacks on a GPU's stream must not.
  if (RunsWork()) return cudaErrorNotPermitted;
  Device& device = *Process::Get().CurrentDevice();
  // A device that has failed answers everything with the same error.
  if (device.fault() != cudaSuccess) return device.fault();
  const cudaError_t error = TakeFault(device.index, call);
  // Such an error is the device's from now on, and not only this call's.
  if (IsSticky(error)) device.Fail(error);
  return error;
}

cudaError_t Return(cudaError_t error) {
  // Success does not clear the last error, as in CUDA.
  if (error != cudaSuccess) TheThread().last_error = error;
  return error;
}

bool IsSticky(cudaError_t error) {
  // After these errors CUDA demands a new process.
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
  // A destroyed stream still has its work, but its handle means nothing any more.
  return found == process.streams.end() || found->second->destroyed ? nullptr : found->first;
}

CUevent_st* FindEvent(cudaEvent_t handle) {
  Process& process = Process::Get();
  std::lock_guard lock(process.mutex);
  // The handle is a pointer that may be wrong, so it is looked up and not followed.
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
    // CUDA invalidates the capture as well, not only the call.
    capture->invalid = true;
    return true;
  }
  return false;
}

cudaError_t Submit(cudaStream_t handle, Work work) {
  CUstream_st* stream = FindStream(handle);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  // CUDA refuses a stream of another device for new work.
  if (stream->device != TheThread().device) return cudaErrorInvalidResourceHandle;
  // Captured work becomes a node of the graph, and does not run.
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
  // Devices are changed by Configure only, so the list needs no lock.
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
  // The stream's work may run on another thread, for which the device is not the current one.
  Device& device = Process::Get().device(TheThread().device);
  return Return(
      Submit(stream, {WorkKind::kLibrary, [step = std::move(step), microseconds, &device] {
                        if (step()) {
                          device.Spend(microseconds);
                          return Progress::kDone;
                        }
                        // Other devices may have to proceed before this work can.
                        WaitsForOtherDevice();
                        return Progress::kWaiting;
                      }}));
}

bool LiesOnDevice(int device, const void* pointer, size_t bytes, const char* user) {
  Device& owner = Process::Get().device(device);
  std::lock_guard lock(owner.mutex);
  return owner.memory.Contains(pointer, bytes, user);
}

void* TakeMemory(int device, size_t bytes) {
  Device& owner = Process::Get().device(device);
  const size_t limit = Process::Get().settings.memory_bytes;
  std::lock_guard lock(owner.mutex);
  // The comparison is written so that it cannot overflow.
  if (bytes > limit - std::min(limit, owner.memory.used_bytes())) return nullptr;
  return owner.memory.Allocate(bytes);
}

void ReturnMemory(int device, void* memory) {
  Device& owner = Process::Get().device(device);
  std::lock_guard lock(owner.mutex);
  TERCIO_CHECK(owner.memory.Free(memory));
}

Counts GetCounts() {
  return {Process::Get().kernels, Process::Get().works, Process::Get().graph_launches};
}

}  // namespace tercio::emulation
