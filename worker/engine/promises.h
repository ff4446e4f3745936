// What a job was promised of its bits, and whether the backend that computes it keeps that. Pure.
#pragma once

#include "absl/status/status.h"
#include "kernels/ops.h"
#include "proto/tercio/v1/job.pb.h"

namespace tercio::engine {

// Jobs on CPUs have the same bits in every layout (docs/numerics.md), for which all of
// kernels::Promises is needed. Jobs on GPUs do without them: `reproducibility: exact` fixes only
// the order of sums that the engine itself makes.
kernels::Promises PromisesTo(const v1::JobSpec& job);

// FAILED_PRECONDITION names the promises that the backend does not make.
absl::Status CheckPromises(const v1::JobSpec& job, const kernels::Promises& backend);

}  // namespace tercio::engine
