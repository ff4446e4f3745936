#include "plan/simulator/checkpoint_interval.h"

#include <algorithm>
#include <cmath>

namespace tercio::plan::simulator {
namespace {

// Between the end of a checkpoint's pause and the moment it can be loaded.
double Unwritten(const SaveCosts& costs) { return std::max(0.0, costs.written - costs.pause); }

// A checkpoint that is due while the last one is being written is skipped.
double Possible(const SaveCosts& costs, double interval) {
  return std::max(interval, Unwritten(costs));
}

}  // namespace

double YoungInterval(const SaveCosts& costs) {
  return std::sqrt(2 * costs.pause * costs.mean_to_failure);
}

double DalyInterval(const SaveCosts& costs) {
  const double ratio = costs.pause / (2 * costs.mean_to_failure);
  if (ratio >= 1) return costs.mean_to_failure;
  return YoungInterval(costs) * (1 + std::sqrt(ratio) / 3 + ratio / 9) - costs.pause;
}

double ExpectedWaste(const SaveCosts& costs, double wanted) {
  const double interval = Possible(costs, wanted);
  const double mean = costs.mean_to_failure;
  const double segment = interval + costs.pause;
  double wall = mean * std::exp(costs.restart / mean) * std::expm1(segment / mean);
  // What such a failure loses on top: the interval before, which is computed again.
  wall *= 1 + Unwritten(costs) / mean;
  return std::isfinite(wall) ? 1 - interval / wall : 1;
}

double FirstOrderWaste(const SaveCosts& costs, double wanted) {
  const double interval = Possible(costs, wanted);
  const double segment = interval + costs.pause;
  return costs.pause / segment +
         (segment / 2 + costs.restart + Unwritten(costs)) / costs.mean_to_failure;
}

double LeastWasteInterval(const SaveCosts& costs) {
  // Sections of the logarithm: the waste changes with the interval's order of magnitude. Neither
  // end is near: a hundredth of Young's interval, and a hundred times the mean to a failure.
  double low = std::log(std::max(1e-6, YoungInterval(costs) / 100));
  double high = std::log(costs.mean_to_failure * 100);
  const double section = (std::sqrt(5.0) - 1) / 2;
  constexpr int kSections = 80;
  for (int i = 0; i < kSections; ++i) {
    const double left = high - section * (high - low);
    const double right = low + section * (high - low);
    // Both ends may be at a waste of 1, where the lower interval is the better one.
    if (ExpectedWaste(costs, std::exp(left)) <= ExpectedWaste(costs, std::exp(right))) {
      high = right;
    } else {
      low = left;
    }
  }
  return Possible(costs, std::exp((low + high) / 2));
}

}  // namespace tercio::plan::simulator
