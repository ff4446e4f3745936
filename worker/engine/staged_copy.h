// Copies between floats of the host and values of the device that may have another format: through
// memory of the device, where the numbers are converted. Work is enqueued on the stream, in pieces.
//
// Threads: that of the engine.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "kernels/values.h"
#include "worker/device/device.h"
#include "worker/engine/arena.h"

namespace tercio::engine {

// Whether rounding to a format of 32 or 16 bits leaves all of the values as they are.
bool AreNumbersOf(kernels::Format format, absl::Span<const float> values);

class StagedCopy {
 public:
  // Works in scratch of the arena that is free between passes.
  StagedCopy(Arena& arena, device::Stream& stream);

  // Rounds to the format of `to`.
  void FromHost(kernels::Values to, const float* from, int64_t count);
  // `to` is complete when the stream is.
  void ToHost(float* to, kernels::ConstValues from, int64_t count);

  // Values as floats of the device, which are valid until the next call: themselves, or a copy.
  // REQUIRES: count <= capacity(), unless they are floats.
  const float* Floats(kernels::ConstValues values, int64_t count);
  int64_t capacity() const { return capacity_; }

 private:
  device::Stream& stream_;
  float* const scratch_;
  const int64_t capacity_;  // floats
};

}  // namespace tercio::engine
