// What of the training state a rank holds, as slices of logical tensors: the link between flat
// buffers and checkpoints that know no layout.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/model_tensors.h"
#include "proto/tercio/v1/checkpoint_service.pb.h"
#include "proto/tercio/v1/job.pb.h"
#include "proto/tercio/v1/plan.pb.h"

namespace tercio {

// kGuard, kSpikes: of the step guard, which is in no buffer.
enum class StateKind { kParameter, kFirstMoment, kSecondMoment, kGuard, kSpikes };

struct StateSlice {
  v1::TensorSlice slice;
  StateKind kind = StateKind::kParameter;
  int64_t offset = 0;    // elements, in the parameter or moment buffer
  int64_t elements = 0;  // of the slice: whole local rows
};

// Slices that this rank contributes to a checkpoint; over all ranks every element comes exactly
// once.
std::vector<StateSlice> SlicesToSave(const plan::StageTensors& tensors, const v1::RankPlan& plan);

// Slices that this rank needs to go on.
std::vector<StateSlice> SlicesToLoad(const plan::StageTensors& tensors, const v1::RankPlan& plan);

// The index in `all` of each of `some`. REQUIRES: they are there; what a rank saves are whole
// slices of what it needs.
std::vector<size_t> FindAmong(const std::vector<StateSlice>& all,
                              const std::vector<StateSlice>& some);

// The step guard's state (kGuardTensor, kSpikeTensor), as far as the job has one: saved by the
// first rank, needed by all.
void AddGuardSlices(const v1::JobSpec& job, const v1::RankPlan& plan,
                    std::vector<StateSlice>* to_save, std::vector<StateSlice>* to_load);

}  // namespace tercio
