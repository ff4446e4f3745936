// How much memory a rank takes, measured: of the arena that the plan describes, and beside it.
//
// Memory beside the arena is what of the device's memory (Device::BytesInUse) is in use now beyond
// what was before the rank made anything on it, less the arena's own: on the CPU threads' stacks,
// gRPC's and Gloo's buffers, tokens, a tensor that is being loaded; on a GPU NCCL's buffers,
// kernels that were loaded, workspaces of libraries, and what other processes took meanwhile.
//
// Threads: one, that of the training loop.
#pragma once

#include <cstdint>

#include "worker/device/device.h"
#include "worker/engine/training_engine.h"

namespace tercio {

class MemoryMeter {
 public:
  // Before groups and engine are made: what is in use now is not the rank's. `device` must outlive
  // the meter.
  explicit MemoryMeter(Device& device);

  // Looks how much is in use after `steps` steps of this process. At the arena, for which the
  // kernel goes through its pages, only where the steps have doubled since it last was; at the
  // rest always.
  void Measure(const TrainingEngine& engine, int64_t steps);
  // Looks at everything.
  void MeasureAll(const TrainingEngine& engine);

  // Bytes of the arena in use when it was last looked at; 0 before that.
  int64_t used_bytes() const { return used_; }
  // The most that was seen at one time: arena and memory beside it.
  int64_t peak_bytes() const { return peak_; }
  // The most that was seen beside the arena.
  int64_t outside_bytes() const { return outside_; }

 private:
  Device& device_;
  const int64_t before_;
  int64_t next_look_ = 0;  // at the arena, in steps
  int64_t used_ = 0;
  int64_t peak_ = 0;
  int64_t outside_ = 0;
};

}  // namespace tercio
