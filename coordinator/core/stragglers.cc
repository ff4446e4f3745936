#include "coordinator/core/stragglers.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"

namespace tercio::coordinator {
namespace {

// The past of a rank is judged by this many windows, so that a single fast one is no standard.
constexpr size_t kRecentWindows = 5;
// Makes the median absolute deviation of normal noise its standard deviation.
constexpr double kNormal = 1.4826;

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

}  // namespace

StragglerDetector::StragglerDetector(const v1::Plan& plan, StragglerSettings settings)
    : settings_(settings) {
  for (const v1::RankPlacement& placement : plan.ranks()) {
    Rank& rank = ranks_[placement.rank()];
    rank.stage = placement.pipeline_index();
    rank.node = placement.node();
    stages_[rank.stage].push_back(placement.rank());
  }
}

std::vector<StragglerChange> StragglerDetector::Add(const std::vector<v1::RankTiming>& timings) {
  for (const v1::RankTiming& timing : timings) {
    const auto found = ranks_.find(timing.rank());
    // Ranks that are not in this plan have nothing to compare; the negation also excludes NaN.
    if (found == ranks_.end() || !(timing.compute_seconds() > 0)) continue;
    Rank& rank = found->second;
    reported_ += rank.compute > 0 ? 0 : 1;
    rank.compute = timing.compute_seconds();
    // The first report gives no difference: how many steps it covers is not known.
    if (rank.last_step > 0) rank.steps += std::max<int64_t>(0, timing.step() - rank.last_step);
    rank.last_step = timing.step();
  }
  // A window needs all ranks, since medians of some would blame those that report early.
  return reported_ == ranks_.size() ? CloseWindow() : std::vector<StragglerChange>();
}

// The slowdown of a rank against its best, corrected by how much slower the job is.
StragglerDetector::Reference StragglerDetector::PastOf(int rank, const Rank& entry) const {
  std::vector<double> others;
  for (const auto& [other, peer] : ranks_) {
    if (other != rank && peer.best > 0) others.push_back(peer.compute / peer.best);
  }
  // When every rank has slowed down, the data or the network is the cause, not this rank; a
  // job that got faster does not make the reference stricter, hence at least 1.
  const double common = others.empty() ? 1 : std::max(1.0, Median(others));
  return {entry.best * common, settings_.least_spread * entry.best, "its own best was"};
}

StragglerDetector::Reference StragglerDetector::MedianOf(const std::vector<int>& stage) const {
  std::vector<double> times;
  for (const int rank : stage) times.push_back(ranks_.at(rank).compute);
  const double median = Median(times);
  for (double& value : times) value = std::abs(value - median);
  const double spread = std::max(kNormal * Median(times), settings_.least_spread * median);
  return {median, spread, "the median of its stage is"};
}

// In a stage of one or two ranks.
StragglerDetector::Reference StragglerDetector::ReferenceOf(int rank, const Rank& entry) const {
  const std::vector<int>& stage = stages_.at(entry.stage);
  const Reference past = PastOf(rank, entry);
  if (stage.size() == 1) return past;
  const double peer = std::min(ranks_.at(stage[0]).compute, ranks_.at(stage[1]).compute);
  // The better of the two references: where both ranks of a stage are slow, the peer hides it.
  if (entry.best > 0 && past.seconds < peer) return past;
  return {peer, settings_.least_spread * peer, "the other rank of its stage needs"};
}

bool StragglerDetector::IsCertain(const Rank& entry) const {
  return entry.windows >= settings_.windows ||
         (entry.windows >= 2 && entry.steps_of_windows >= settings_.steps);
}

std::vector<StragglerChange> StragglerDetector::CloseWindow() {
  std::vector<StragglerChange> changes;
  // The ranks of the next window are counted from zero.
  reported_ = 0;
  std::map<int, Reference> medians;
  for (const auto& [stage, ranks] : stages_) {
    if (ranks.size() >= 3) medians[stage] = MedianOf(ranks);
  }
  for (auto& [rank, entry] : ranks_) {
    const auto median = medians.find(entry.stage);
    const Reference reference = median != medians.end() ? median->second : ReferenceOf(rank, entry);
    // Without a past there is no reference.
    const double score = reference.seconds > 0 ? reference.seconds / entry.compute : 1;
    scores_[rank] = score;
    const bool slow =
        // All three conditions must hold: a ratio alone would blame ranks of very short steps.
        score < settings_.score &&
        entry.compute - reference.seconds >
            std::max(settings_.deviations * reference.spread, settings_.least_seconds);
    entry.windows = slow == entry.slow ? 0 : entry.windows + 1;
    entry.steps_of_windows = slow == entry.slow ? 0 : entry.steps_of_windows + entry.steps;
    if (!IsCertain(entry)) continue;
    changes.push_back(
        {rank, slow, score,
         absl::StrFormat(
             "rank %d (node %s) computes for %.4g s per step, %s %.4g s: score %.2f in %d "
             "windows%s",
             rank, entry.node, entry.compute, reference.what, reference.seconds, score,
             entry.windows, slow ? "" : ", no longer a straggler")});
    entry.slow = slow;
    entry.windows = 0;
    entry.steps_of_windows = 0;
  }
  // The past is updated after the judgement: a slow window must not soften its own reference.
  for (auto& [rank, entry] : ranks_) {
    entry.recent.push_back(entry.compute);
    if (entry.recent.size() > kRecentWindows) entry.recent.pop_front();
    entry.compute = 0;
    entry.steps = 0;
    if (entry.recent.size() < static_cast<size_t>(settings_.windows)) continue;
    const double median = Median({entry.recent.begin(), entry.recent.end()});
    entry.best = entry.best > 0 ? std::min(entry.best, median) : median;
  }
  return changes;
}

}  // namespace tercio::coordinator
