// What of a rank's memory depends on the kind of its device: scratch that operations need beside
// their arguments, and what lies outside of the arena. Pure.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "plan/model_tensors.h"
#include "plan/stage_units.h"
#include "proto/tercio/v1/job.pb.h"
#include "proto/tercio/v1/plan.pb.h"

namespace tercio::plan {

class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;

  // Bytes that all operations of the device share, one after the other.
  virtual int64_t Workspace(const StageShape& shape, const StageUnits& units,
                            const StageTensors& tensors) const = 0;
  // Floats of attention, for devices without a workspace.
  virtual int64_t AttentionScratch(const StageShape& shape, const StageUnits& units,
                                   int threads) const = 0;
  // Floats of a sum of `count` floats over ranks.
  virtual int64_t SumScratch(int64_t count, int ranks) const = 0;
  // Floats of a sum of which each rank keeps a part (Communicator::ReduceScatterParts).
  virtual int64_t PartsScratch(int64_t largest_part, int ranks) const = 0;
  // Whether the device's memory is not the host's, to which snapshots are copied.
  virtual bool SnapshotsOnHost() const = 0;
  // plan/memory_map.h. `tensors`: of the rank's stage.
  virtual int64_t MostBytesOutside(const v1::Layout& layout, const StageTensors& tensors) const = 0;
};

// `job` must outlive it.
std::unique_ptr<DeviceMemory> DeviceMemoryOf(const v1::JobSpec& job);

// Why our own kernels compute the attention of the model, or its gradients, on GPUs, slower than
// cuDNN would (kernels/cuda/attention_choice.h), as a sentence for people; empty: cuDNN computes
// both. `capability` is the major compute capability of the GPUs; 0: not known.
std::string WhyOwnAttention(const v1::JobSpec& job, const v1::Layout& layout, int capability);

// What a rank on CPUs may take beside its arena, but for one tensor of its stage.
inline constexpr int64_t kHostReserveBytes = int64_t{256} << 20;

}  // namespace tercio::plan
