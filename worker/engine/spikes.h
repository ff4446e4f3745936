// Finds a loss or gradient norm far above those of previous steps. Pure: every rank that is given
// the same numbers gets the same result.
//
// The window holds the last plan::kSpikeWindow steps that were not spikes. A value is a spike if
// its logarithm is above the window's median by more than `threshold` robust standard deviations,
// 1.4826 x the median absolute deviation (Rousseeuw & Croux 1993), and it is also above a floor,
// since in a smooth curve any step is many deviations away: a loss kLossRatio times the median and
// kLeastLoss above it, a gradient norm kNormRatio times the median. Logarithms, since both are
// skewed: small batches and losses near zero give single values of many times the median. The first
// kLeastSteps steps are never spikes, nor are values that fall.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "plan/precision.h"

namespace tercio::engine {

class SpikeDetector {
 public:
  static constexpr double kThreshold = 10;  // if the job gives none
  static constexpr double kLossRatio = 1.2;
  static constexpr double kLeastLoss = 0.2;
  static constexpr double kNormRatio = 10;
  static constexpr int kLeastSteps = 32;

  // threshold <= 0: kThreshold.
  explicit SpikeDetector(double threshold) : threshold_(threshold > 0 ? threshold : kThreshold) {}

  // "loss 9.1, usually 3.2 to 3.6", or empty: then the step belongs to the window from now on.
  // REQUIRES: both are finite.
  std::string Judge(double loss, double grad_norm);

  // The run has reached another level.
  void Forget();

  // {steps, then 128 logarithms of losses and 128 of norms, oldest first, zeros after the last}:
  // exact, since the window holds no more digits than that.
  std::vector<float> state() const;
  // INVALID_ARGUMENT if `state` is not a possible result of state().
  absl::Status Restore(absl::Span<const float> state);

 private:
  using Window = std::deque<float>;  // a window of logarithms
  std::string JudgeOne(const char* name, const Window& window, double value, double ratio,
                       double least) const;

  double threshold_;
  Window losses_;
  Window norms_;
};

// The logical tensor of a checkpoint that holds the state, in jobs that act on spikes
// (plan::ActsOnSpikes).
inline constexpr char kSpikeTensor[] = "training.spikes";

}  // namespace tercio::engine
