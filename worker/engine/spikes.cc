#include "worker/engine/spikes.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace tercio::engine {
namespace {

// The standard deviation of a normal distribution, in median absolute deviations.
constexpr double kDeviationsOfMedian = 1.4826;
constexpr double kZero = 1e-12;  // smaller values count as this much

// Rounded, so that ranks agree even if the last bits of their libraries' logarithms differ.
float LogOf(double value) { return static_cast<float>(std::log(std::max(value, kZero))); }

// The lower of two middle values.
float MedianOf(std::vector<float> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

std::string SpikeDetector::JudgeOne(const char* name, const Window& window, double value,
                                    double ratio, double least) const {
  // A median and its deviations stay as they are when a few steps of the window are far off.
  const float median = MedianOf({window.begin(), window.end()});
  std::vector<float> deviations;
  for (const float other : window) deviations.push_back(std::abs(other - median));
  const double deviation = kDeviationsOfMedian * MedianOf(std::move(deviations));
  const double above = LogOf(value) - median;
  // Zeros carry no information about magnitudes: they are gradients of a frozen model.
  if (median <= LogOf(0) || above <= std::max(threshold_ * deviation, std::log(ratio)) ||
      value - std::exp(median) <= least) {
    return "";
  }
  // People compare the value with what the window has seen, not with a logarithm.
  const auto [low, high] = std::minmax_element(window.begin(), window.end());
  return absl::StrFormat("%s %.4g, usually %.4g to %.4g", name, value, std::exp(*low),
                         std::exp(*high));
}

std::string SpikeDetector::Judge(double loss, double grad_norm) {
  // The median of a few steps says little about what is usual.
  if (static_cast<int>(losses_.size()) >= kLeastSteps) {
    const std::string of_loss = JudgeOne("loss", losses_, loss, kLossRatio, kLeastLoss);
    const std::string of_norm = JudgeOne("gradient norm", norms_, grad_norm, kNormRatio, 0);
    if (!of_loss.empty() || !of_norm.empty()) {
      return absl::StrCat(of_loss, of_loss.empty() || of_norm.empty() ? "" : "; ", of_norm);
    }
  }
  // Spikes do not come this far: they would make the next one look usual.
  losses_.push_back(LogOf(loss));
  norms_.push_back(LogOf(grad_norm));
  // Losses and norms enter and leave together, so one length serves both.
  if (static_cast<int64_t>(losses_.size()) > plan::kSpikeWindow) {
    losses_.pop_front();
    norms_.pop_front();
  }
  return "";
}

void SpikeDetector::Forget() {
  losses_.clear();
  norms_.clear();
}

std::vector<float> SpikeDetector::state() const {
  std::vector<float> state(static_cast<size_t>(plan::kSpikeStateElements));
  state[0] = static_cast<float>(losses_.size());
  std::copy(losses_.begin(), losses_.end(), state.begin() + 1);
  std::copy(norms_.begin(), norms_.end(), state.begin() + 1 + plan::kSpikeWindow);
  return state;
}

absl::Status SpikeDetector::Restore(absl::Span<const float> state) {
  bool possible = static_cast<int64_t>(state.size()) == plan::kSpikeStateElements;
  for (const float value : state) possible = possible && std::isfinite(value);
  possible = possible && state[0] >= 0 && state[0] <= plan::kSpikeWindow &&
             std::trunc(state[0]) == state[0];
  if (!possible) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor ", kSpikeTensor, " does not hold losses and gradient norms"));
  }
  const auto count = static_cast<std::ptrdiff_t>(state[0]);
  losses_.assign(state.begin() + 1, state.begin() + 1 + count);
  // Norms have a fixed place, however many losses precede them.
  const auto norms = state.begin() + 1 + plan::kSpikeWindow;
  norms_.assign(norms, norms + count);
  return absl::OkStatus();
}

}  // namespace tercio::engine
