// How weights and gradients travel between the ranks that divide the state, where the job has a
// block format for them (kernels/block_format.h): each rank's part of a unit packed, tensor by
// tensor. Shards begin at multiples of a block within a tensor (StateUnitsOf), so that blocks are
// those of whole tensors, as each tensor rank holds them, in every layout. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/block_format.h"
#include "plan/model_tensors.h"
#include "plan/state_shards.h"
#include "proto/tercio/v1/job.pb.h"
#include "proto/tercio/v1/plan.pb.h"

namespace tercio::plan {

// The format of one tensor: vectors (biases, norms) stay as they are, since they are small, and a
// model is sensitive to them.
kernels::BlockFormat FormatOfTensor(const StageTensor& entry, kernels::BlockFormat of_job);

// A run of one tensor in a rank's part of a unit.
struct PackedRun {
  int64_t begin;  // elements of the unit
  int64_t elements;
  kernels::BlockFormat format;
  int64_t byte;  // where it lies in the packed unit; a multiple of 16
};

struct PackedUnit {
  std::vector<std::vector<PackedRun>> runs;  // by rank
  std::vector<int64_t> bounds;               // bytes: rank r has [bounds[r], bounds[r + 1])

  int64_t bytes() const { return bounds.back(); }
};
PackedUnit PackedUnitOf(const StageTensors& tensors, const StateUnit& unit,
                        kernels::BlockFormat format);

// Buffers of a stage's rank, for one unit at a time; nothing where it does not travel packed.
struct PackedBuffers {
  int64_t packed = 0;    // bytes of a unit
  int64_t received = 0;  // bytes of the parts that the other ranks have for this one
  int64_t floats = 0;    // bytes of these parts as floats
};
PackedBuffers PackedWeights(const v1::JobSpec& job, const v1::Layout& layout,
                            const StageTensors& tensors);
PackedBuffers PackedGradients(const v1::JobSpec& job, const v1::Layout& layout,
                              const StageTensors& tensors);

}  // namespace tercio::plan
