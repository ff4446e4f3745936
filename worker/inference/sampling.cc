#include "worker/inference/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/random.h"

namespace tercio::inference {
namespace {

// In [0, 1). A double has 53 bits: all multiples of 2^-53 are equally likely.
double Uniform(uint64_t seed, int64_t number) {
  const uint64_t word =
      kernels::SplitMix64(kernels::SplitMix64(seed) ^ static_cast<uint64_t>(number));
  return static_cast<double>(word >> 11) * 0x1.0p-53;
}

}  // namespace

int32_t SampleId(absl::Span<const float> logits, const GenerateOptions& options, int64_t number) {
  const auto* best = std::max_element(logits.begin(), logits.end());
  if (options.temperature <= 0) return static_cast<int32_t>(best - logits.begin());
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  // Among equal logits the smaller id comes first. Ids that are cut off need no order.
  const auto logit = [logits](int32_t id) { return logits[static_cast<size_t>(id)]; };
  const auto likelier = [logit](int32_t a, int32_t b) {
    return logit(a) != logit(b) ? logit(a) > logit(b) : a < b;
  };
  if (options.top_k > 0 && options.top_k < static_cast<int64_t>(order.size())) {
    std::partial_sort(order.begin(), order.begin() + options.top_k, order.end(), likelier);
    order.resize(static_cast<size_t>(options.top_k));
  } else if (options.top_p < 1) {
    std::sort(order.begin(), order.end(), likelier);
  }
  std::vector<double> weights;
  double sum = 0;
  for (const int32_t id : order) {
    // Relative to the largest logit exp cannot overflow.
    weights.push_back(std::exp((static_cast<double>(logit(id)) - *best) / options.temperature));
    sum += weights.back();
  }
  if (options.top_p < 1) {
    // The most likely ids that together have the probability top_p, at least one.
    double kept = 0;
    size_t count = 0;
    while (count < weights.size() && kept < options.top_p * sum) kept += weights[count++];
    weights.resize(std::max<size_t>(1, count));
    sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  }
  double left = Uniform(options.seed, number) * sum;
  for (size_t i = 0; i < weights.size(); ++i) {
    left -= weights[i];
    if (left < 0) return order[i];
  }
  // Rounding may leave a little when all weights have been taken away.
  return order[weights.size() - 1];
}

}  // namespace tercio::inference
