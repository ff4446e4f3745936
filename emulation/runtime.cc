// CUDA's functions for devices, errors, memory and kernels.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "emulation/device.h"
#include "emulation/grid.h"

using tercio::emulation::CapturesHere;
using tercio::emulation::Device;
using tercio::emulation::Enter;
using tercio::emulation::Misuse;
using tercio::emulation::Process;
using tercio::emulation::Progress;
using tercio::emulation::Return;
using tercio::emulation::Submit;
using tercio::emulation::TheThread;
using tercio::emulation::WorkKind;

namespace {

constexpr int kVersion = 13000;
// A few multiprocessors suffice to see whether a kernel divides its work by their number.
constexpr int kMultiprocessors = 4;
// These limits are those of CUDA's guide.
constexpr int kSharedBytes = 48 << 10;
// The shared memory that a kernel declares itself is not known here: each counts as if it declared
// this much.
constexpr int kDeclaredSharedBytes = 1 << 10;
constexpr int kSharedBytesOptin = 163 << 10;  // the smaller of compute capabilities 8.0 and 9.0

bool Exists(int device) {
  return device >= 0 && device < static_cast<int>(Process::Get().devices.size());
}

enum class Place { kDevice, kPinned, kPageable };

// The place of the memory. Ends the program if it exceeds its allocation.
Place PlaceOf(const void* pointer, size_t bytes, const char* user) {
  Process& process = Process::Get();
  // An address tells nothing about its memory, so all allocations are asked.
  for (const auto& device : process.devices) {
    std::lock_guard lock(device->mutex);
    if (device->memory.Contains(pointer, bytes, user)) return Place::kDevice;
  }
  std::lock_guard lock(process.mutex);
  // Memory that nobody here has allocated is the program's own.
  return process.pinned.Contains(pointer, bytes, user) ? Place::kPinned : Place::kPageable;
}

// A GPU would follow a wrong direction to an address that means nothing there.
bool KindFits(cudaMemcpyKind kind, Place to, Place from) {
  const bool to_device = to == Place::kDevice;
  const bool from_device = from == Place::kDevice;
  switch (kind) {
    case cudaMemcpyHostToHost:
      return !to_device && !from_device;
    case cudaMemcpyHostToDevice:
      return to_device && !from_device;
    case cudaMemcpyDeviceToHost:
      return !to_device && from_device;
    case cudaMemcpyDeviceToDevice:
      return to_device && from_device;
    case cudaMemcpyDefault:
      return true;
  }
  return false;
}

struct Copy {
  char* to;
  size_t to_pitch;
  const char* from;
  size_t from_pitch;
  size_t width;
  size_t height;
};

cudaError_t SubmitCopy(const Copy& copy, cudaMemcpyKind kind, cudaStream_t stream,
                       const char* name) {
  // CUDA accepts empty copies with any pointers.
  if (copy.width == 0 || copy.height == 0) return cudaSuccess;
  if (copy.to_pitch < copy.width || copy.from_pitch < copy.width) return cudaErrorInvalidValue;
  // The last row may end before its pitch, where the allocation may end, too.
  const size_t last = copy.height - 1;
  const Place to = PlaceOf(copy.to, last * copy.to_pitch + copy.width, name);
  const Place from = PlaceOf(copy.from, last * copy.from_pitch + copy.width, name);
  if (!KindFits(kind, to, from)) return cudaErrorInvalidValue;
  // Such a copy would be synchronous on a GPU, and hide missing waits.
  if (to == Place::kPageable || from == Place::kPageable) {
    Misuse(std::string(name) + ": host memory that is not pinned (cudaMallocHost)");
  }
  return Submit(stream, {WorkKind::kCopy, [copy] {
                           for (size_t row = 0; row < copy.height; ++row) {
                             std::memmove(copy.to + row * copy.to_pitch,
                                          copy.from + row * copy.from_pitch, copy.width);
                           }
                           return Progress::kDone;
                         }});
}

}  // namespace

cudaError_t cudaDriverGetVersion(int* version) {
  *version = kVersion;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = kVersion;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = static_cast<int>(Process::Get().devices.size());
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  if (!Exists(device)) return Return(cudaErrorInvalidDevice);
  // The device is that of the calling thread, as in CUDA.
  TheThread().device = device;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = TheThread().device;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (!Exists(device)) return Return(cudaErrorInvalidDevice);
  *properties = {};
  std::snprintf(properties->name, sizeof(properties->name), "Emulated device %d", device);
  properties->totalGlobalMem = Process::Get().settings.memory_bytes;
  properties->sharedMemPerBlock = kSharedBytes;
  properties->sharedMemPerBlockOptin = kSharedBytesOptin;
  properties->warpSize = tercio::emulation::kWarpLanes;
  properties->maxThreadsPerBlock = tercio::emulation::kMaxThreadsPerBlock;
  properties->major = Process::Get().settings.major;
  properties->minor = Process::Get().settings.minor;
  properties->multiProcessorCount = kMultiprocessors;
  properties->ECCEnabled = 1;
  properties->pciBusID = device + 1;
  properties->l2CacheSize = 4 << 20;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (!Exists(device)) return Return(cudaErrorInvalidDevice);
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
      *value = tercio::emulation::kMaxThreadsPerBlock;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      *value = kSharedBytes;
      break;
    case cudaDevAttrWarpSize:
      *value = tercio::emulation::kWarpLanes;
      break;
    case cudaDevAttrMultiProcessorCount:
      *value = kMultiprocessors;
      break;
    case cudaDevAttrEccEnabled:
      *value = 1;
      break;
    case cudaDevAttrComputeCapabilityMajor:
      *value = Process::Get().settings.major;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = Process::Get().settings.minor;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = kSharedBytesOptin;
      break;
  }
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  // An injected fault or a failed device ends every call here.
  if (const cudaError_t error = Enter("cudaDeviceSynchronize"); error != cudaSuccess) {
    return Return(error);
  }
  // CUDA forbids waiting for a device while a stream of it is captured.
  if (CapturesHere()) return Return(cudaErrorStreamCaptureUnsupported);
  Device& device = *Process::Get().CurrentDevice();
  // Without a stream that is waited for, any may run first.
  const cudaError_t error = device.RunUntil(nullptr, [&] { return device.Idle(); });
  std::lock_guard lock(device.mutex);
  // Everything has finished, so whatever was written past an end is there by now.
  device.memory.CheckGuards();
  return Return(error);
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  if (!Exists(device) || !Exists(peer)) return Return(cudaErrorInvalidDevice);
  // A device needs no access to itself.
  *can = device == peer ? 0 : 1;
  return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned int flags) {
  if (const cudaError_t error = Enter("cudaDeviceEnablePeerAccess"); error != cudaSuccess) {
    return Return(error);
  }
  // Access goes one way: from the current device to the peer.
  Device& device = *Process::Get().CurrentDevice();
  if (!Exists(peer) || peer == device.index) return Return(cudaErrorInvalidDevice);
  if (flags != 0) return Return(cudaErrorInvalidValue);
  std::lock_guard lock(device.mutex);
  return Return(device.peers.insert(peer).second ? cudaSuccess : cudaErrorPeerAccessAlreadyEnabled);
}

cudaError_t cudaGetLastError() {
  const cudaError_t error = cudaPeekAtLastError();
  // Asking clears the error, but not that of a device that has failed.
  TheThread().last_error = cudaSuccess;
  return error;
}

cudaError_t cudaPeekAtLastError() {
  // The device's error comes first, as it explains all later ones.
  const cudaError_t fault = Process::Get().CurrentDevice()->fault();
  return fault != cudaSuccess ? fault : TheThread().last_error;
}

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  if (const cudaError_t error = Enter("cudaMalloc"); error != cudaSuccess) return Return(error);
  if (CapturesHere()) return Return(cudaErrorStreamCaptureUnsupported);
  *pointer = nullptr;
  // CUDA gives a null pointer for no memory.
  if (bytes == 0) return cudaSuccess;
  const size_t limit = Process::Get().settings.memory_bytes;
  Device& device = *Process::Get().CurrentDevice();
  std::lock_guard lock(device.mutex);
  // The comparison is written so that it cannot overflow.
  if (bytes > limit - std::min(limit, device.memory.used_bytes())) {
    return Return(cudaErrorMemoryAllocation);
  }
  *pointer = device.memory.Allocate(bytes);
  return cudaSuccess;
}

cudaError_t cudaFree(void* pointer) {
  if (const cudaError_t error = Enter("cudaFree"); error != cudaSuccess) return Return(error);
  if (pointer == nullptr) return cudaSuccess;
  if (CapturesHere()) return Return(cudaErrorStreamCaptureUnsupported);
  // The memory may belong to another device than the current one.
  for (const auto& device : Process::Get().devices) {
    {
      std::lock_guard lock(device->mutex);
      // Addresses are looked up under the lock, but the wait must not hold it.
      if (!device->memory.Contains(pointer, 0, "cudaFree")) continue;
    }
    // CUDA waits for the device, too.
    const cudaError_t error = device->RunUntil(nullptr, [&] { return device->Idle(); });
    if (error != cudaSuccess) return Return(error);
    std::lock_guard lock(device->mutex);
    return Return(device->memory.Free(pointer) ? cudaSuccess : cudaErrorInvalidValue);
  }
  return Return(cudaErrorInvalidValue);
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  if (const cudaError_t error = Enter("cudaMemGetInfo"); error != cudaSuccess) return Return(error);
  Device& device = *Process::Get().CurrentDevice();
  std::lock_guard lock(device.mutex);
  *total = Process::Get().settings.memory_bytes;
  *free = *total - std::min(*total, device.memory.used_bytes());
  return cudaSuccess;
}

cudaError_t cudaMallocHost(void** pointer, size_t bytes) {
  if (const cudaError_t error = Enter("cudaMallocHost"); error != cudaSuccess) return Return(error);
  if (CapturesHere()) return Return(cudaErrorStreamCaptureUnsupported);
  Process& process = Process::Get();
  // Pinned memory belongs to no device.
  std::lock_guard lock(process.mutex);
  *pointer = bytes == 0 ? nullptr : process.pinned.Allocate(bytes);
  return cudaSuccess;
}

cudaError_t cudaFreeHost(void* pointer) {
  if (const cudaError_t error = Enter("cudaFreeHost"); error != cudaSuccess) return Return(error);
  if (pointer == nullptr) return cudaSuccess;
  if (CapturesHere()) return Return(cudaErrorStreamCaptureUnsupported);
  Process& process = Process::Get();
  // Work of any device may still use pinned memory.
  for (const auto& device : process.devices) {
    const cudaError_t error = device->RunUntil(nullptr, [&] { return device->Idle(); });
    if (error != cudaSuccess) return Return(error);
  }
  std::lock_guard lock(process.mutex);
  return Return(process.pinned.Free(pointer) ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  if (const cudaError_t error = Enter("cudaMemcpy"); error != cudaSuccess) return Return(error);
  if (CapturesHere()) return Return(cudaErrorStreamCaptureUnsupported);
  if (bytes == 0) return cudaSuccess;
  // A copy that waits may use any host memory.
  if (!KindFits(kind, PlaceOf(to, bytes, "cudaMemcpy"), PlaceOf(from, bytes, "cudaMemcpy"))) {
    return Return(cudaErrorInvalidValue);
  }
  // Work in streams is not waited for: the streams of Tercio never synchronize with others.
  std::memmove(to, from, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  if (const cudaError_t error = Enter("cudaMemcpyAsync"); error != cudaSuccess)
    return Return(error);
  const Copy copy = {
      static_cast<char*>(to), bytes, static_cast<const char*>(from), bytes, bytes, 1};
  return Return(SubmitCopy(copy, kind, stream, "cudaMemcpyAsync"));
}

cudaError_t cudaMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device,
                                size_t bytes, cudaStream_t stream) {
  if (const cudaError_t error = Enter("cudaMemcpyPeerAsync"); error != cudaSuccess) {
    return Return(error);
  }
  if (!Exists(to_device) || !Exists(from_device)) return Return(cudaErrorInvalidDevice);
  // Addresses are checked against the devices that were named, for on a GPU each has its own.
  if (!tercio::emulation::LiesOnDevice(to_device, to, bytes, "cudaMemcpyPeerAsync") ||
      !tercio::emulation::LiesOnDevice(from_device, from, bytes, "cudaMemcpyPeerAsync")) {
    return Return(cudaErrorInvalidValue);
  }
  const Copy copy = {
      static_cast<char*>(to), bytes, static_cast<const char*>(from), bytes, bytes, 1};
  return Return(SubmitCopy(copy, cudaMemcpyDeviceToDevice, stream, "cudaMemcpyPeerAsync"));
}

cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                              size_t width, size_t height, cudaMemcpyKind kind,
                              cudaStream_t stream) {
  if (const cudaError_t error = Enter("cudaMemcpy2DAsync"); error != cudaSuccess) {
    return Return(error);
  }
  const Copy copy = {
      static_cast<char*>(to), to_pitch, static_cast<const char*>(from), from_pitch, width, height};
  return Return(SubmitCopy(copy, kind, stream, "cudaMemcpy2DAsync"));
}

cudaError_t cudaMemsetAsync(void* pointer, int value, size_t bytes, cudaStream_t stream) {
  if (const cudaError_t error = Enter("cudaMemsetAsync"); error != cudaSuccess)
    return Return(error);
  if (bytes == 0) return cudaSuccess;
  if (PlaceOf(pointer, bytes, "cudaMemsetAsync") == Place::kPageable) {
    return Return(cudaErrorInvalidValue);
  }
  return Return(Submit(stream, {WorkKind::kSet, [=] {
                                  std::memset(pointer, value, bytes);
                                  return Progress::kDone;
                                }}));
}

namespace tercio::emulation {

cudaError_t EnqueueKernel(const cudaLaunchConfig_t& config, const void* kernel,
                          std::function<void()> thread) {
  if (const cudaError_t error = Enter("cudaLaunchKernelEx"); error != cudaSuccess) {
    return Return(error);
  }
  const dim3 blocks = config.gridDim;
  const dim3 threads = config.blockDim;
  // Products of three numbers of 32 bits may overflow 32 bits.
  const uint64_t per_block = uint64_t{threads.x} * threads.y * threads.z;
  // These are the limits of CUDA's guide for all compute capabilities in use.
  if (per_block == 0 || per_block > kMaxThreadsPerBlock || threads.z > 64 || blocks.x == 0 ||
      blocks.x > INT32_MAX || blocks.y == 0 || blocks.y > 65535 || blocks.z == 0 ||
      blocks.z > 65535) {
    return Return(cudaErrorInvalidConfiguration);
  }
  // Attributes of launches would be ignored, so none may be asked for.
  if (config.numAttrs != 0) return Return(cudaErrorInvalidValue);
  Device& device = *Process::Get().CurrentDevice();
  // The lock is held only for the limit, and not while the kernel runs.
  {
    std::lock_guard lock(device.mutex);
    const auto allowed = device.kernel_shared_bytes.find(kernel);
    const int usual = kSharedBytes - kDeclaredSharedBytes;
    const int most = allowed == device.kernel_shared_bytes.end() ? usual : allowed->second;
    // More shared memory than usual has to be allowed for the kernel first.
    if (config.dynamicSmemBytes > static_cast<size_t>(std::max(most, usual))) {
      return Return(cudaErrorInvalidValue);
    }
  }
  const size_t shared_bytes = config.dynamicSmemBytes;
  return Return(
      Submit(config.stream, {WorkKind::kKernel, [=, &device] {
                               // A fault named "kernel" happens when the kernel runs, as a real one
                               // does.
                               if (const cudaError_t error = TakeFault(device.index, "kernel");
                                   error != cudaSuccess) {
                                 device.Fail(error);
                                 return Progress::kDone;
                               }
                               Process& process = Process::Get();
                               // Orders may change between the launch and the run.
                               Orders orders;
                               {
                                 std::lock_guard lock(process.mutex);
                                 orders = process.settings.orders;
                               }
                               ++process.kernels;
                               RunGrid({kernel, blocks, threads, shared_bytes, &thread}, orders);
                               return Progress::kDone;
                             }}));
}

cudaError_t SetKernelAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  if (const cudaError_t error = Enter("cudaFuncSetAttribute"); error != cudaSuccess) {
    return Return(error);
  }
  // No kernel may ask for more than the device has beside what it declares itself.
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 ||
      value > kSharedBytesOptin - kDeclaredSharedBytes) {
    return Return(cudaErrorInvalidValue);
  }
  Device& device = *Process::Get().CurrentDevice();
  std::lock_guard lock(device.mutex);
  device.kernel_shared_bytes[kernel] = value;
  return cudaSuccess;
}

cudaError_t GetKernelName(const char** name, const void* kernel) {
  *name = KernelName(kernel);
  return cudaSuccess;
}

}  // namespace tercio::emulation
