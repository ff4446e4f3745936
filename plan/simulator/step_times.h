// The time of a step when ranks are not all alike: passes whose time varies, devices that are
// slower than others. Pure: numbers are drawn from a stream that is given.
//
// A pass of a stage ends when the slowest of its tensor ranks has ended it; a step ends when the
// slowest of the data ranks' pipelines has. Factors are log-normal with mean 1, so that jitter
// alone makes no pass slower on average: what it costs is waiting. The greatest of n draws is drawn
// at once, by the quantile u^(1/n) (plan/simulator/draws.h). The pipeline of one data rank is
// played from its action lists with drawn factors a few hundred times; what data ranks wait for is
// the greatest of as many draws from a normal distribution with the mean, deviation and skewness of
// those (Cornish and Fisher 1938).
#pragma once

#include <cstdint>
#include <vector>

#include "plan/planner/cost/pipeline_time.h"
#include "plan/planner/cost/step_cost.h"
#include "plan/simulator/draws.h"

namespace tercio::plan::simulator {

// Relative: 0.1 is a tenth.
struct Disturbances {
  double pass_jitter = 0;  // standard deviation of a pass of a rank, each on its own
  double step_jitter = 0;  // a rank's passes in a step, taken together
  double slow_share = 0;   // of devices that are slower than the others, all the time
  double slow_by = 0;      // how much longer their passes take

  bool none() const;
};

struct StepShape {
  ScheduleShape schedule;
  cost::PipelineCost pipeline;
  int tensor = 1;
  int data = 1;
  double pipeline_seconds = 0;  // the predicted time of all passes
  double rest_seconds = 0;      // of the step: exchange of data ranks, optimizer

  double seconds() const { return pipeline_seconds + rest_seconds; }
};

// The shape of a predicted step in a layout.
StepShape ShapeOfStep(const cost::StepTiming& timing, const v1::Layout& layout);

// The steps of a run, drawn once: a run takes them from any place on, and starts over behind the
// last. Sums of many are as cheap as one.
class StepTimes {
 public:
  explicit StepTimes(const std::vector<double>& seconds);

  int64_t size() const { return static_cast<int64_t>(sums_.size()) - 1; }
  double mean() const { return sums_.back() / static_cast<double>(size()); }
  // The sum of `count` steps from `first` on. REQUIRES: 0 <= first < size, count >= 0.
  double Sum(int64_t first, int64_t count) const;
  // How many whole steps from `first` on take at most `seconds`.
  int64_t CountWithin(int64_t first, double seconds) const;

 private:
  double UpTo(int64_t count) const;  // of the first `count`, over the end

  std::vector<double> sums_;
};

// Learns once how much the pipeline of one data rank varies, and how much a slow stage costs.
class StepSampler {
 public:
  StepSampler(const StepShape& shape, const Disturbances& disturbances, uint64_t seed);

  // `count` steps of one run: which devices are slow is drawn once for all of them.
  StepTimes Draw(int64_t count, Draws* draws) const;

 private:
  // Data ranks whose pipelines take so many times the undisturbed time.
  struct Group {
    double slower = 1;
    double ranks = 0;
  };

  void LearnJitter(uint64_t seed);
  void LearnSlowStages();
  std::vector<Group> DrawGroups(Draws* draws) const;
  double DrawStep(const std::vector<Group>& groups, Draws* draws) const;

  StepShape shape_;
  Disturbances disturbances_;
  // The pipeline of a data rank, relative to its undisturbed time.
  double mean_ = 1;
  double deviation_ = 0;
  double skewness_ = 0;
  // If a stage is slow: how many times longer the pipeline takes, and by how much longer one
  // micro-batch takes there, relative to the pipeline.
  std::vector<double> slow_stage_;
  std::vector<double> once_;
};

}  // namespace tercio::plan::simulator
