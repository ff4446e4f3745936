// How a test rules the emulated devices: how many and how large, in which orders things run, which
// faults happen. Not part of CUDA.
//
// Threads: Configure and the reports while nobody else uses CUDA; the rest at any time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "emulation/orders.h"
#include "emulation/runtime_api.h"

namespace tercio::emulation {

// Which stream goes on when somebody waits for one of them. kWaitedFirst runs nothing else until
// that one needs it, and so shows work that forgets to wait for another stream; kWaitedLast shows
// what others overwrite too early; kDrawn is anything between.
enum class StreamOrder { kDrawn, kWaitedFirst, kWaitedLast };

struct Settings {
  int devices = 1;
  size_t memory_bytes = size_t{4} << 30;  // of each device
  int major = 8;                          // compute capability
  int minor = 0;
  uint64_t seed = 1;  // of what is drawn
  StreamOrder streams = StreamOrder::kDrawn;
  size_t max_queued = 256;  // items of a stream; at that the oldest of it run
  Orders orders;            // within a kernel
  // Not 0: a thread runs what nobody has waited for during this time. For programs whose ranks
  // wait for each other outside of CUDA; a GPU goes on by itself.
  int progress_after_milliseconds = 0;
};

// Starts again with these devices: everything that was made before is forgotten, and memory that
// was not freed given back. Every thread begins with device 0 and no error.
void Configure(const Settings& settings);
// Sets the orders of what runs from now on.
void SetOrders(const Orders& orders);
void SetStreamOrder(StreamOrder order, uint64_t seed);

// One line for each allocation of devices and pinned memory that was not freed; "" where there is
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
// For programs under test: their environment may hold one for device 0,
// TERCIO_EMULATED_FAULT="NUMBER CALL AFTER", where NUMBER is that of the error.
bool IsSticky(cudaError_t error);

// Work for the library functions that are emulated besides (matrix products, collectives). `step`
// runs in stream order; it returns false where it cannot go on yet, since it waits for others, and
// is called again later, and true when it has finished; then it may be called for a next time (in a
// graph). `microseconds`: what it takes of the device's clock, which is virtual, beside the one of
// any work.
cudaError_t EnqueueWork(cudaStream_t stream, const char* what, std::function<bool()> step,
                        int64_t microseconds = 0);

// For such libraries. Whether the address lies in an allocation of the device; ends the program
// where [pointer, pointer + bytes) leaves it.
bool LiesOnDevice(int device, const void* pointer, size_t bytes, const char* user);

// Counts since Configure, of all devices.
struct Counts {
  int64_t kernels = 0;
  int64_t works = 0;   // of any kind
  int64_t graphs = 0;  // launched
};
Counts GetCounts();

}  // namespace tercio::emulation
