#include "plan/simulator/step_times.h"

#include <algorithm>
#include <cmath>

#include "common/check.h"

namespace tercio::plan::simulator {
namespace {

using cost::PipelineWalk;

// Passes that are played to learn how much a pipeline varies, and how often at least and at most.
constexpr double kPlayedPasses = 2e6;
constexpr double kLeastPlays = 48;
constexpr double kMostPlays = 512;
// Longer pipelines repeat themselves: what is left out varies as what is played does.
constexpr int kMostGroups = 16;

// A log-normal number with mean 1, by the standard deviation of its logarithm.
double Factor(double normal, double deviation) {
  return std::exp(deviation * normal - deviation * deviation / 2);
}
double LogDeviation(double relative) { return std::sqrt(std::log1p(relative * relative)); }

// The schedule with fewer micro-batches, in whole groups.
ScheduleShape Shortened(ScheduleShape shape) {
  const int group = std::max(1, shape.stages);
  const int left_out = shape.micro_batches / group - kMostGroups;
  if (left_out > 0) shape.micro_batches -= left_out * group;
  return shape;
}

}  // namespace

StepShape ShapeOfStep(const cost::StepTiming& timing, const v1::Layout& layout) {
  StepShape shape;
  shape.schedule = timing.shape;
  shape.pipeline = timing.pipeline;
  shape.tensor = std::max(1, layout.tensor());
  shape.data = std::max(1, layout.data()) * std::max(1, layout.context_parallel());
  cost::PipelineWalks walks;
  shape.pipeline_seconds =
      std::min(timing.cost.seconds, walks.Play(timing.shape, timing.pipeline).seconds);
  shape.rest_seconds = timing.cost.seconds - shape.pipeline_seconds;
  return shape;
}

bool Disturbances::none() const {
  return pass_jitter <= 0 && step_jitter <= 0 && (slow_share <= 0 || slow_by <= 0);
}

StepTimes::StepTimes(const std::vector<double>& seconds) {
  TERCIO_CHECK(!seconds.empty());
  sums_.reserve(seconds.size() + 1);
  sums_.push_back(0);
  for (const double each : seconds) sums_.push_back(sums_.back() + each);
}

double StepTimes::UpTo(int64_t count) const {
  const int64_t times = count / size();  // that all of them are used
  return static_cast<double>(times) * sums_.back() + sums_[static_cast<size_t>(count % size())];
}

double StepTimes::Sum(int64_t first, int64_t count) const {
  return UpTo(first + count) - UpTo(first);
}

int64_t StepTimes::CountWithin(int64_t first, double seconds) const {
  const double until = UpTo(first) + seconds;
  const auto rounds = static_cast<int64_t>(until / sums_.back());
  const double rest = until - static_cast<double>(rounds) * sums_.back();
  const auto after = std::upper_bound(sums_.begin(), sums_.end(), rest);
  const int64_t whole = after - sums_.begin() - 1 + rounds * size();
  return std::max<int64_t>(0, whole - first);
}

StepSampler::StepSampler(const StepShape& shape, const Disturbances& disturbances, uint64_t seed)
    : shape_(shape), disturbances_(disturbances) {
  slow_stage_.assign(static_cast<size_t>(shape.schedule.stages), 1);
  once_.assign(slow_stage_.size(), 0);
  if (disturbances.none()) return;
  if (disturbances.pass_jitter > 0 || disturbances.step_jitter > 0) LearnJitter(seed);
  if (disturbances.slow_share > 0 && disturbances.slow_by > 0) LearnSlowStages();
}

void StepSampler::LearnJitter(uint64_t seed) {
  const ScheduleShape played = Shortened(shape_.schedule);
  const PipelineWalk walk(played);
  const double still = walk.Play(shape_.pipeline).seconds;
  const double passes =
      2.0 * played.micro_batches * static_cast<double>(shape_.pipeline.places.size());
  const auto plays = static_cast<int>(std::clamp(kPlayedPasses / passes, kLeastPlays, kMostPlays));
  const double of_pass = LogDeviation(disturbances_.pass_jitter);
  const double of_step = LogDeviation(disturbances_.step_jitter);
  const double tensor = shape_.tensor;
  Draws draws(seed, /*stream=*/0);
  std::vector<double> steps(static_cast<size_t>(played.stages));
  double sum = 0;
  double squares = 0;
  double cubes = 0;
  std::vector<double> seen;
  for (int play = 0; play < plays; ++play) {
    for (double& step : steps) step = Factor(LargestNormal(draws.Uniform(), tensor), of_step);
    const auto factor = [&](int stage) {
      const double step = steps[static_cast<size_t>(stage)];
      if (of_pass <= 0) return step;
      return step * Factor(LargestNormal(draws.Uniform(), tensor), of_pass);
    };
    seen.push_back(walk.Play(shape_.pipeline, factor).seconds / still);
    sum += seen.back();
  }
  mean_ = sum / plays;
  for (const double each : seen) {
    squares += (each - mean_) * (each - mean_);
    cubes += (each - mean_) * (each - mean_) * (each - mean_);
  }
  deviation_ = std::sqrt(squares / (plays - 1));
  if (deviation_ > 0) skewness_ = cubes / plays / (deviation_ * deviation_ * deviation_);
  // A few hundred plays know the skewness to some tenths; beyond 1 the expansion does not hold.
  skewness_ = std::clamp(skewness_, -1.0, 1.0);
  // Passes that were left out vary on their own; what holds for a whole step does not average out.
  if (of_step <= 0) {
    deviation_ *= std::sqrt(static_cast<double>(played.micro_batches) /
                            std::max(1, shape_.schedule.micro_batches));
  }
}

void StepSampler::LearnSlowStages() {
  const PipelineWalk walk(Shortened(shape_.schedule));
  const double still = walk.Play(shape_.pipeline).seconds;
  for (size_t slow = 0; slow < slow_stage_.size(); ++slow) {
    const auto factor = [&](int stage) {
      return static_cast<size_t>(stage) == slow ? 1 + disturbances_.slow_by : 1.0;
    };
    slow_stage_[slow] = walk.Play(shape_.pipeline, factor).seconds / still;
    const cost::PassSeconds& passes = shape_.pipeline.places[slow];
    once_[slow] = disturbances_.slow_by * (passes.forward + passes.backward) / still;
  }
}

std::vector<StepSampler::Group> StepSampler::DrawGroups(Draws* draws) const {
  const int data = std::max(1, shape_.data);
  if (disturbances_.slow_share <= 0 || disturbances_.slow_by <= 0) {
    return {{.slower = 1, .ranks = static_cast<double>(data)}};
  }
  // A stage of a data rank is slow if any of its tensor ranks is.
  const double of_stage = -std::expm1(shape_.tensor * std::log1p(-disturbances_.slow_share));
  const size_t stages = slow_stage_.size();
  std::vector<double> slower(static_cast<size_t>(data), 1);
  std::vector<size_t> slowest(static_cast<size_t>(data), stages);
  const double all = static_cast<double>(stages) * data;
  // From one slow stage to the next: there are few among many.
  for (double at = draws->FailuresBeforeSuccess(of_stage); at < all;
       at += 1 + draws->FailuresBeforeSuccess(of_stage)) {
    const auto place = static_cast<size_t>(at);
    const size_t rank = place / stages;
    const size_t stage = place % stages;
    // The slowest stage sets the pace of its pipeline; another one delays it once.
    size_t& before = slowest[rank];
    if (before == stages) {
      slower[rank] = slow_stage_[stage];
      before = stage;
    } else if (slow_stage_[stage] > slow_stage_[before]) {
      slower[rank] += slow_stage_[stage] - slow_stage_[before] + once_[before];
      before = stage;
    } else {
      slower[rank] += once_[stage];
    }
  }
  std::sort(slower.begin(), slower.end());
  std::vector<Group> groups;
  for (const double each : slower) {
    if (groups.empty() || each != groups.back().slower) groups.push_back({each, 0});
    ++groups.back().ranks;
  }
  return groups;
}

double StepSampler::DrawStep(const std::vector<Group>& groups, Draws* draws) const {
  double slowest = 0;
  for (const Group& group : groups) {
    double relative = mean_;
    if (deviation_ > 0) {
      const double normal = LargestNormal(draws->Uniform(), group.ranks);
      relative += deviation_ * (normal + skewness_ * (normal * normal - 1) / 6);
    }
    slowest = std::max(slowest, group.slower * relative);
  }
  return shape_.pipeline_seconds * slowest + shape_.rest_seconds;
}

StepTimes StepSampler::Draw(int64_t count, Draws* draws) const {
  if (disturbances_.none()) return StepTimes({shape_.seconds()});
  const std::vector<Group> groups = DrawGroups(draws);
  std::vector<double> seconds;
  seconds.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) seconds.push_back(DrawStep(groups, draws));
  return StepTimes(seconds);
}

}  // namespace tercio::plan::simulator
