// Weights that a job reads from elsewhere: those of its first step, if it does not begin with
// random ones, and its teacher's.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "proto/tercio/v1/job.pb.h"
#include "worker/trainer/state_loader.h"
#include "worker/trainer/state_source.h"

namespace tercio::trainer {

// The weights in model.from; moments stay zero. Errors name the directory.
absl::StatusOr<std::shared_ptr<StateSource>> OpenInitialWeights(const v1::ModelSpec& model);

// Loads the weights of the teacher that a job learns from; without one (null) nothing is done.
// Errors name the directory, else they are those of LoadState.
absl::Status LoadTeacherWeights(const v1::DistillationSpec& spec, const LoadGroup& group,
                                const LoadedBytes& loaded, engine::LoadTarget* teacher);

}  // namespace tercio::trainer
