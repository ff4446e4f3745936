// The cross-entropy of logits and a target, in nats: log-sum-exp minus the target's logit, in
// double.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "absl/types/span.h"

namespace tercio::inference {

// REQUIRES: 0 <= target < logits.size().
inline double CrossEntropy(absl::Span<const float> logits, int32_t target) {
  const float best = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - best);
  return best + std::log(sum) - logits[static_cast<size_t>(target)];
}

}  // namespace tercio::inference
