// The weights of a job's first step, if it does not begin with random ones.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "proto/tercio/v1/job.pb.h"
#include "worker/trainer/state_source.h"

namespace tercio::trainer {

// The weights in model.from; moments stay zero. Errors name the directory.
absl::StatusOr<std::shared_ptr<StateSource>> OpenInitialWeights(const v1::ModelSpec& model);

}  // namespace tercio::trainer
