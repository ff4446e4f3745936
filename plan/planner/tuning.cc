#include "plan/planner/tuning.h"

#include <algorithm>
#include <utility>

#include "plan/planner/candidates.h"
#include "plan/planner/planner.h"

namespace tercio::plan {
namespace {

// Ratios of smaller predictions say nothing.
constexpr double kLeastSeconds = 1e-6;
// What a trial may gain over its corrected prediction, however exact the others were.
constexpr double kLeastGain = 0.9;
// Fewer trials neither correct predictions well nor tell how far off they are.
constexpr int kLeastTrials = 3;

double Compute(const v1::StepParts& parts) { return parts.compute() + parts.recompute(); }
double Wait(const v1::StepParts& parts) {
  return parts.tensor_communication() + parts.pipeline_bubble() + parts.pipeline_transfers() +
         parts.data_exposed();
}
// What state elsewhere adds is measured with the update, where most of it is.
double Optimizer(const v1::StepParts& parts) { return parts.optimizer() + parts.offload(); }
double Total(const v1::StepParts& parts) {
  return Compute(parts) + Wait(parts) + Optimizer(parts) + parts.other();
}

// 1: there are none.
double MedianOf(std::vector<double> values) {
  if (values.empty()) return 1;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

Correction CorrectionOf(absl::Span<const Trial> trials) {
  std::vector<double> compute;
  std::vector<double> wait;
  std::vector<double> optimizer;
  std::vector<double> whole;
  const auto add = [](double measured, double predicted, std::vector<double>* ratios) {
    if (measured > 0 && predicted > kLeastSeconds) ratios->push_back(measured / predicted);
  };
  for (const Trial& trial : trials) {
    if (!trial.measured.has_value()) continue;
    add(trial.measured->compute, Compute(trial.predicted), &compute);
    add(trial.measured->wait, Wait(trial.predicted), &wait);
    add(trial.measured->optimizer, Optimizer(trial.predicted), &optimizer);
    add(trial.measured->seconds, Total(trial.predicted), &whole);
  }
  // Where ranks do not measure parts, the whole step stands for each of them.
  if (compute.empty()) {
    const double ratio = MedianOf(whole);
    return {ratio, ratio, ratio};
  }
  return {MedianOf(compute), MedianOf(wait), MedianOf(optimizer)};
}

double CorrectedSeconds(const v1::StepParts& parts, const Correction& correction) {
  return Compute(parts) * correction.compute + Wait(parts) * correction.wait +
         Optimizer(parts) * correction.optimizer + parts.other();
}

std::vector<Trial> TrialsOf(const v1::JobSpec& job, const Cluster& cluster) {
  Candidates candidates(job, cluster);
  std::vector<std::pair<double, Trial>> timed;
  for (const v1::Layout& degrees : LayoutsOfDegrees(job, cluster.ranks)) {
    for (const v1::LayoutCandidate& candidate : candidates.AllWith(degrees)) {
      Trial trial;
      trial.layout = candidate.layout();
      trial.predicted = candidate.predicted().parts();
      timed.emplace_back(candidate.predicted().step_seconds(), std::move(trial));
    }
  }
  std::stable_sort(timed.begin(), timed.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Trial> trials;
  trials.reserve(timed.size());
  for (auto& [seconds, trial] : timed) trials.push_back(std::move(trial));
  return trials;
}

std::optional<size_t> BestTrial(absl::Span<const Trial> trials) {
  std::optional<size_t> best;
  for (size_t i = 0; i < trials.size(); ++i) {
    if (!trials[i].measured.has_value()) continue;
    if (best.has_value() && trials[i].measured->seconds >= trials[*best].measured->seconds)
      continue;
    best = i;
  }
  return best;
}

std::optional<size_t> NextTrial(absl::Span<const Trial> trials) {
  const Correction correction = CorrectionOf(trials);
  std::optional<size_t> next;
  double least = 0;
  double gain = kLeastGain;
  int measured = 0;
  for (size_t i = 0; i < trials.size(); ++i) {
    const double corrected = CorrectedSeconds(trials[i].predicted, correction);
    if (trials[i].measured.has_value()) {
      ++measured;
      gain = std::min(gain, trials[i].measured->seconds / std::max(corrected, kLeastSeconds));
    } else if (!trials[i].failed && (!next.has_value() || corrected < least)) {
      next = i;
      least = corrected;
    }
  }
  const std::optional<size_t> best = BestTrial(trials);
  if (!next.has_value() || !best.has_value() || measured < kLeastTrials) return next;
  if (least * gain > trials[*best].measured->seconds) return std::nullopt;
  return next;
}

}  // namespace tercio::plan
