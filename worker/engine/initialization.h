// Initial weights as GPT-2: normal with standard deviation 0.02, residual projections divided by
// sqrt(2 * layers), norms one, biases zero (Radford et al. 2019, section 2.3).
#pragma once

#include <vector>

#include "plan/model_tensors.h"
#include "proto/tercio/v1/plan.pb.h"

namespace tercio::engine {

// This rank's values of one tensor, padding rows zero: local_rows x local_columns. Every element
// depends on (seed, tensor, row, column) only.
std::vector<float> InitialValues(const plan::LogicalTensor& tensor, const v1::RankPlan& plan,
                                 uint64_t seed);

}  // namespace tercio::engine
