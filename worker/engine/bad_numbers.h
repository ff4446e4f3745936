// Finds where the numbers of a step went bad: for the message that stops a job or skips a step.
// Pure.
#pragma once

#include <string>

#include "absl/types/span.h"
#include "proto/tercio/v1/plan.pb.h"

namespace tercio::engine {

// `losses`: of each sequence of the global batch. `not_finite`: how many elements of each tensor's
// gradient are not finite, in the order of plan::ModelTensors. `plan`: of any rank. Names the first
// sequence whose loss is not finite and the rank that has computed it; else, since gradients flow
// from the last tensor to the first, the last tensor whose gradient is not, and the ranks that hold
// it.
std::string DescribeBadNumbers(absl::Span<const double> losses, absl::Span<const double> not_finite,
                               const v1::RankPlan& plan);

}  // namespace tercio::engine
