// Controls of the emulated devices for tests: how many and how large, in which orders things run,
// which faults happen. Not part of CUDA.
//
// Threads: Configure and the reports while no other thread uses CUDA; the rest at any time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "emulation/orders.h"
#include "emulation/runtime_api.h"

namespace tercio::emulation {

// The stream that runs next while a thread waits for one of them. kWaitedFirst runs nothing else
// until that one needs it, and so exposes work that does not wait for another stream; kWaitedLast
// exposes work that others overwrite too early; kDrawn is anything between.
enum class StreamOrder { kDrawn, kWaitedFirst, kWaitedLast };

struct Settings {
  int devices = 1;
  size_t memory_bytes = size_t{4} << 30;  // memory of each device
  int major = 8;                          // compute capability
  int minor = 0;
  uint64_t seed = 1;  // for random choices
  StreamOrder streams = StreamOrder::kDrawn;
  size_t max_queued = 256;  // works in a stream; when it is full the oldest of them runs
  Orders orders;            // within a kernel
  // Not 0: a thread runs work that has not been waited for during this time. For programs whose
  // ranks wait for each other outside of CUDA; a GPU proceeds by itself.
  int progress_after_milliseconds = 0;
};

// Starts again with these devices: everything that was made before is forgotten, and memory that
// was not freed is released. Every thread begins with device 0 and no error.
void Configure(const Settings& settings);
// Sets the orders of all work that runs from now on.
void SetOrders(const Orders& orders);
void SetStreamOrder(StreamOrder order, uint64_t seed);

// One line for each allocation of devices and pinned memory that was not freed; "" if there is
// none. Printed to stderr at the end of the process, too.
std::string MemoryReport();

// An error that happens once, at the call `call` ("cudaMalloc", ...) or, with "kernel", when a
// kernel runs, after `after` others of that name on the device. Errors that a device does not
// survive make everything on it fail from then on, and drop what its streams had still to do.
struct Fault {
  cudaError_t error;
  std::string call = "kernel";
  int64_t after = 0;
  int device = 0;
};
void InjectFault(const Fault& fault);
// For programs under test: their environment may define a fault of device 0,
// TERCIO_EMULATED_FAULT="NUMBER CALL AFTER", where NUMBER is that of the error.
bool IsSticky(cudaError_t error);

// Work for the other emulated libraries (matrix products, collectives). `step` runs in stream
// order; it returns false if it cannot continue yet, since it waits for others, and is called again
// later, and true when it has finished; then it may be called for another run (in a graph).
// `microseconds`: its time on the device's clock, which is virtual, in addition to the one of any
// work.
cudaError_t EnqueueWork(cudaStream_t stream, const char* what, std::function<bool()> step,
                        int64_t microseconds = 0);

// For such libraries. Whether the address lies in an allocation of the device; ends the program if
// [pointer, pointer + bytes) exceeds it.
bool LiesOnDevice(int device, const void* pointer, size_t bytes, const char* user);

// Memory of a device for such a library; null: there is not as much. Returned with ReturnMemory.
void* TakeMemory(int device, size_t bytes);
void ReturnMemory(int device, void* memory);

// Counts since Configure, of all devices.
struct Counts {
  int64_t kernels = 0;
  int64_t works = 0;   // works of any kind
  int64_t graphs = 0;  // launched
};
Counts GetCounts();

}  // namespace tercio::emulation
