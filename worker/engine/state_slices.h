// The part of the training state that a rank holds, as slices of logical tensors: the link between
// flat buffers and checkpoints that know no layout.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "plan/model_tensors.h"
#include "plan/state_shards.h"
#include "proto/tercio/v1/checkpoint_service.pb.h"
#include "proto/tercio/v1/job.pb.h"
#include "proto/tercio/v1/plan.pb.h"

namespace tercio::engine {

// kGuard, kSpikes: of the step guard; kFp8: of FP8's scales. They are in no buffer.
enum class StateKind { kParameter, kFirstMoment, kSecondMoment, kGuard, kSpikes, kFp8 };

struct StateSlice {
  v1::TensorSlice slice;
  StateKind kind = StateKind::kParameter;
  int64_t offset = 0;    // elements, in the parameter or moment buffer; kFp8: layers of the stage
  int64_t elements = 0;  // elements of the slice: whole local rows
  // kParameter: elements, in the weights that the model reads.
  int64_t model_offset = 0;
};

// Whether a tensor that an engine needs may be missing in a checkpoint.
bool IsOptionalState(std::string_view tensor);

// Slices that this rank contributes to a checkpoint; over all ranks every element comes exactly
// once. Where data ranks divide the state, each saves its shard, else one of them each tensor.
std::vector<StateSlice> SlicesToSave(const plan::StageTensors& tensors,
                                     const plan::RankShards& shards, const v1::RankPlan& plan);

// Slices that this rank needs to resume: of its shard.
std::vector<StateSlice> SlicesToLoad(const plan::StageTensors& tensors,
                                     const plan::RankShards& shards, const v1::RankPlan& plan);

// The index in `all` of each of `some`. REQUIRES: they are there; a rank saves whole slices of
// those that it needs.
std::vector<size_t> FindAmong(const std::vector<StateSlice>& all,
                              const std::vector<StateSlice>& some);

// The step guard's state (kGuardTensor, kSpikeTensor), as far as the job has one: saved by the
// first rank, needed by all.
void AddGuardSlices(const v1::JobSpec& job, const v1::RankPlan& plan,
                    std::vector<StateSlice>* to_save, std::vector<StateSlice>* to_load);

// The history of FP8's scales (Fp8Tensor), in jobs that have it, of each layer of the stage: saved
// by the stage's first rank, needed by all of it.
void AddFp8Slices(const v1::JobSpec& job, const v1::RankPlan& plan,
                  std::vector<StateSlice>* to_save, std::vector<StateSlice>* to_load);

}  // namespace tercio::engine
