// The matrix products of a stage's steps, as kernels/cuda/product_algorithms.h names them:
// algorithms are chosen for these before the first step. Those whose sizes depend on the data (the
// rows that an encoder's head predicts) are not among them. Pure.
#pragma once

#include <vector>

#include "kernels/cuda/product_algorithms.h"
#include "proto/tercio/v1/job.pb.h"
#include "proto/tercio/v1/plan.pb.h"

namespace tercio::engine {

// Each once, in the order of kernels::cuda::ProductShape.
std::vector<kernels::cuda::ProductShape> ProductShapes(const v1::JobSpec& job,
                                                       const v1::RankPlan& plan);

}  // namespace tercio::engine
