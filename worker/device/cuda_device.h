// A GPU as a device.
//
// Operations are enqueued and run later; a stream is fed by the thread that made it. Functions that
// run on the host (Stream::RunOnHost) wait for the stream first, so the fast paths have none. The
// first error of a device is kept, named after the call that met it, and everything after it fails:
// a process can no longer use a GPU that has failed.
#pragma once

#include <cuda_runtime.h>

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cuda/notes.h"
#include "kernels/cuda/product_algorithms.h"
#include "worker/device/device.h"

namespace tercio::device {

struct CudaDeviceOptions {
  bool tf32 = false;  // products of fp32 values may round their factors to TF32
  bool fp8 = false;   // the GPU must have products of 8-bit factors
  // Algorithms of products (kernels/cuda/product_algorithms.h), shared by all streams: those that
  // exist when a stream first needs them are used, others are added. Null: each stream has its own.
  // Streams that multiply are fed by one thread.
  std::shared_ptr<kernels::cuda::ProductAlgorithms> algorithms;
  bool graphs = true;  // Stream::RecordGraph; else it records nothing
  bool fuses = true;   // operations of a chain share passes (kernels/cuda/cuda_ops.h)
};

// The GPU that the driver calls `ordinal`. FAILED_PRECONDITION if there is none, the driver is too
// old, or the GPU lacks what is requested; the message says how to fix it.
absl::StatusOr<std::unique_ptr<Device>> CreateCudaDevice(int ordinal,
                                                         CudaDeviceOptions options = {});

// REQUIRES: the stream is one of a device of CreateCudaDevice. So for FailStream and Watch.
cudaStream_t HandleOf(Stream& stream);

// Sets the stream's error, unless it has one: for work that could not be enqueued.
void FailStream(Stream& stream, const absl::Status& status);

// What operations of the device's streams computed in a slower way than was meant, as of their last
// synchronization. Threads: any. REQUIRES: the device is one of CreateCudaDevice.
kernels::cuda::FallbackCounts FallbacksOf(Device& device);

// A hook that is polled repeatedly while a thread waits for the stream.
class StreamWatch {
 public:
  // An error ends the wait, and is the stream's. Also once when the stream has ended.
  virtual absl::Status Poll() = 0;
  // After the last Poll of a wait.
  virtual void EndWait() = 0;
  // The stream has failed: its remaining work for this watch must end.
  virtual void GiveUp() = 0;

  virtual ~StreamWatch() = default;
};

// Registers the watch until it is destroyed. Registering it again has no effect.
void Watch(Stream& stream, const std::shared_ptr<StreamWatch*>& watch);

}  // namespace tercio::device
