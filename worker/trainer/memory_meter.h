// Measures how much memory a rank takes: of the arena that the plan describes, and outside it.
//
// Memory outside the arena is the growth of the device's memory in use (Device::BytesInUse) since
// before the rank allocated anything on it, less the arena's own: on the CPU threads' stacks,
// gRPC's and Gloo's buffers, tokens, a tensor that is being loaded; on a GPU NCCL's buffers,
// kernels that were loaded, workspaces of libraries, and memory that other processes took
// meanwhile.
//
// Threads: one, that of the training loop.
#pragma once

#include <cstdint>

#include "worker/device/device.h"
#include "worker/engine/training_engine.h"

namespace tercio::trainer {

class MemoryMeter {
 public:
  // Created before groups and engine: memory in use now is not the rank's. `device` must outlive
  // the meter.
  explicit MemoryMeter(device::Device& device);

  // Measures after `steps` steps of this process. The arena, for which the kernel walks its pages,
  // is measured only when the steps have doubled since the last time; the rest always.
  void Measure(const engine::TrainingEngine& engine, int64_t steps);
  // Measures everything.
  void MeasureAll(const engine::TrainingEngine& engine);

  // Bytes of the arena in use at the last measurement; 0 before that.
  int64_t used_bytes() const { return used_; }
  // The most that was seen at one time: arena and memory outside it.
  int64_t peak_bytes() const { return peak_; }
  // The most that was seen outside the arena.
  int64_t outside_bytes() const { return outside_; }

 private:
  device::Device& device_;
  const int64_t before_;
  int64_t next_look_ = 0;  // step of the next measurement of the arena
  int64_t used_ = 0;
  int64_t peak_ = 0;
  int64_t outside_ = 0;
};

}  // namespace tercio::trainer
