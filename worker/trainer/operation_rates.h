// Measures the operations that a step consists of on one device, with the kernels that training
// uses: products, attention, elementwise kernels, the optimizer's update. Device-neutral.
//
// Threads: the calling thread feeds the device. Errors: those of the device (out of memory, a GPU
// that fails).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/values.h"
#include "proto/tercio/v1/figures.pb.h"
#include "worker/device/device.h"

namespace tercio::trainer {

// What to measure with.
struct RateOptions {
  // Formats of products' factors; the first one is that of all other kernels.
  std::vector<kernels::Format> formats = {kernels::Format::kFloat32};
  bool stores_floats = true;     // values of 16 bits lie in floats (kernels/values.h)
  int64_t workspace_bytes = 64;  // of the stream, which the kernels of GPUs use
  int threads = 1;               // of the device's compute stream, which scratch is made for
  int64_t copy_bytes = int64_t{64} << 20;            // more than caches hold
  absl::Duration patience = absl::Milliseconds(90);  // of each measurement, beside its first call
  std::function<absl::Time()> now;                   // a clock that never goes back
};

// Median seconds of a call: after one that does not count, as many as fit into the patience, at
// least three; calls that are over too soon to be timed are repeated in a row.
absl::StatusOr<double> SecondsOf(device::Stream& stream, const RateOptions& options,
                                 const std::function<void()>& call);

// Fills in the rates of products, attention and kernels, memory_bytes_per_second and
// operation_seconds.
absl::Status MeasureOperations(device::Device& device, const RateOptions& options,
                               v1::MachineFigures* figures);

}  // namespace tercio::trainer
