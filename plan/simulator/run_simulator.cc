#include "plan/simulator/run_simulator.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <queue>

#include "common/check.h"

namespace tercio::plan::simulator {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
// Drawn for each run, and used again from another place on.
constexpr int64_t kDrawnSteps = 512;
// Numbers of one run come from streams of their own.
constexpr uint64_t kStreamsOfRun = 4;
// All runs together: what half a second of one core is enough for.
constexpr double kMostCheckpoints = 4e6;

// Failures of the job, in wall time.
class Failures {
 public:
  Failures(double mean, uint64_t seed, uint64_t stream) : draws_(seed, stream), mean_(mean) {
    Advance();
  }
  double next() const { return next_; }
  void Advance() { next_ = mean_ < kNever ? next_ + draws_.Exponential(mean_) : kNever; }

 private:
  Draws draws_;
  const double mean_;
  double next_ = 0;
};

// Nodes that stand ready, and those that will.
class Spares {
 public:
  explicit Spares(const FaultModel& faults) : replace_(faults.replace), free_(faults.spare_nodes) {}

  // A node failed at `now`: when another is there.
  double Take(double now) {
    if (free_ == kAlwaysSpare) return now;
    returns_.push(now + replace_);
    while (!returns_.empty() && returns_.top() <= now) {
      returns_.pop();
      ++free_;
    }
    if (free_ > 0) {
      --free_;
      return now;
    }
    const double back = returns_.top();
    returns_.pop();
    return back;
  }

 private:
  const double replace_;
  int free_;
  std::priority_queue<double, std::vector<double>, std::greater<>> returns_;
};

class RunOnce {
 public:
  RunOnce(const RunInput& input, const Interval& interval, const StepTimes& times,
          Failures failures, Draws draws)
      : input_(input),
        interval_(interval),
        times_(times),
        failures_(failures),
        draws_(draws),
        spares_(input.faults) {}

  RunOutcome Get() {
    while (now_ < input_.length) {
      if (RunSteps() && now_ < input_.length) SaveIfFree();
    }
    out_.steps = steps_;
    out_.useful = steps_ * input_.step.seconds();
    out_.slower = step_seconds_ - out_.useful;
    return out_;
  }

 private:
  // A checkpoint: what a restart from it has, and when it can be loaded.
  struct Saved {
    double steps = 0;
    double step_seconds = 0;
    double loadable = 0;
  };

  double NextEvent() const { return std::min(failures_.next(), input_.length); }

  // Steps up to the next checkpoint; whether nothing came between.
  bool RunSteps() {
    const int64_t first = times_.size() > 1 ? draws_.Below(times_.size()) : 0;
    const int64_t count = StepsUntilSave(first);
    const double until = NextEvent();
    if (count > 0) {
      const double seconds = times_.Sum(first, count);
      if (now_ + seconds <= until) {
        Advance(static_cast<double>(count), seconds);
        return true;
      }
    }
    const double seconds = until - now_;
    const int64_t whole = times_.CountWithin(first, seconds);
    const double rest = std::max(0.0, seconds - times_.Sum(first, whole));
    // The step that the end of the run, or a failure, cuts.
    const double part = std::min(1.0, rest / times_.Sum((first + whole) % times_.size(), 1));
    Advance(static_cast<double>(whole) + part, seconds);
    if (now_ < input_.length) Fail();
    return false;
  }

  void Advance(double steps, double seconds) {
    now_ += seconds;
    steps_ += steps;
    step_seconds_ += seconds;
  }

  // 0: there is no other checkpoint.
  int64_t StepsUntilSave(int64_t first) const {
    int64_t count = interval_.steps;
    if (interval_.seconds > 0) {
      const int64_t within = times_.CountWithin(first, interval_.seconds);
      const bool exact = within > 0 && times_.Sum(first, within) >= interval_.seconds;
      const int64_t by_time = exact ? within : within + 1;
      count = count > 0 ? std::min(count, by_time) : by_time;
    }
    return count;
  }

  void SaveIfFree() {
    if (now_ < newest_.loadable) return;
    durable_ = newest_;
    const double begin = now_;
    const double end = begin + input_.checkpoint_pause;
    const double until = NextEvent();
    now_ = std::min(end, until);
    out_.checkpoints += now_ - begin;
    if (end <= until) {
      newest_ = {.steps = steps_,
                 .step_seconds = step_seconds_,
                 .loadable = std::max(end, begin + input_.checkpoint_written)};
    } else if (now_ < input_.length) {
      Fail();
    }
  }

  // Back to the newest checkpoint that can be loaded, and through the restart.
  void Fail() {
    if (newest_.loadable <= now_) durable_ = newest_;
    newest_ = durable_;
    out_.lost += step_seconds_ - durable_.step_seconds;
    steps_ = durable_.steps;
    step_seconds_ = durable_.step_seconds;
    const double begin = now_;
    double ready = now_;
    double nodes = now_;  // when all of them are there
    while (failures_.next() <= std::min(ready, input_.length)) {
      const double failed = failures_.next();
      failures_.Advance();
      ++out_.failures;
      nodes = std::max(nodes, spares_.Take(failed));
      ready = std::max(failed + input_.faults.detect, nodes) + input_.faults.restart;
    }
    now_ = std::min(ready, input_.length);
    out_.restarts += now_ - begin;
  }

  const RunInput& input_;
  const Interval interval_;
  const StepTimes& times_;
  Failures failures_;
  Draws draws_;
  Spares spares_;
  RunOutcome out_;
  double now_ = 0;
  double steps_ = 0;
  double step_seconds_ = 0;
  Saved newest_;   // may be being written
  Saved durable_;  // the one before, or the same
};

Spread SpreadOf(std::vector<double> values) {
  Spread spread;
  for (const double value : values) spread.mean += value / static_cast<double>(values.size());
  std::sort(values.begin(), values.end());
  const auto at = [&](double share) {
    return values[static_cast<size_t>(std::lround(share * static_cast<double>(values.size() - 1)))];
  };
  spread.low = at(0.1);
  spread.high = at(0.9);
  return spread;
}

// Solves three equations of three unknowns, by elimination.
std::array<double, 3> Solved(std::array<std::array<double, 4>, 3> rows) {
  for (size_t i = 0; i < 3; ++i) {
    for (size_t j = i + 1; j < 3; ++j) {
      const double factor = rows[j][i] / rows[i][i];
      for (size_t k = i; k < 4; ++k) rows[j][k] -= factor * rows[i][k];
    }
  }
  std::array<double, 3> x = {};
  for (size_t i = 3; i-- > 0;) {
    x[i] = rows[i][3];
    for (size_t j = i + 1; j < 3; ++j) x[i] -= rows[i][j] * x[j];
    x[i] /= rows[i][i];
  }
  return x;
}

// The coefficients of a + b x + c / x with the least squares, for x of the order of 1.
std::array<double, 3> Fitted(const std::vector<double>& x, const std::vector<double>& y) {
  std::array<std::array<double, 4>, 3> rows = {};
  for (size_t at = 0; at < x.size(); ++at) {
    const std::array<double, 4> terms = {1, x[at], 1 / x[at], y[at]};
    for (size_t i = 0; i < 3; ++i) {
      for (size_t j = 0; j < 4; ++j) rows[i][j] += terms[i] * terms[j];
    }
  }
  return Solved(rows);
}

}  // namespace

double FaultModel::MeanToFailure() const { return node_mtbf > 0 ? node_mtbf / nodes : kNever; }

RunSimulator::RunSimulator(const RunInput& input, uint64_t seed)
    : input_(input), seed_(seed), sampler_(input.step, input.disturbances, seed) {
  TERCIO_CHECK(input.step.seconds() > 0);
  TERCIO_CHECK(input.length > 0);
}

RunOutcome RunSimulator::Run(uint64_t number, const Interval& interval) const {
  // Stream 0 is the sampler's.
  const uint64_t first = 1 + number * kStreamsOfRun;
  Draws of_steps(seed_, first);
  const StepTimes times = sampler_.Draw(kDrawnSteps, &of_steps);
  Failures failures(input_.faults.MeanToFailure(), seed_, first + 1);
  return RunOnce(input_, interval, times, failures, Draws(seed_, first + 2)).Get();
}

Forecast RunSimulator::Predict(const Interval& interval, int runs) const {
  double of_interval = interval.steps > 0
                           ? static_cast<double>(interval.steps) * input_.step.seconds()
                           : input_.length;
  if (interval.seconds > 0) of_interval = std::min(of_interval, interval.seconds);
  of_interval = std::max(of_interval, input_.step.seconds());
  const double most = kMostCheckpoints * of_interval / input_.length;
  Forecast forecast;
  forecast.runs = std::max(1, static_cast<int>(std::min<double>(runs, most)));
  std::vector<double> goodput;
  std::vector<double> steps;
  std::vector<double> failures;
  const double share = 1.0 / forecast.runs;
  for (int number = 0; number < forecast.runs; ++number) {
    const RunOutcome run = Run(static_cast<uint64_t>(number), interval);
    goodput.push_back(run.goodput());
    steps.push_back(run.steps);
    failures.push_back(run.failures);
    for (double RunOutcome::*part :
         {&RunOutcome::useful, &RunOutcome::slower, &RunOutcome::checkpoints, &RunOutcome::lost,
          &RunOutcome::restarts, &RunOutcome::steps, &RunOutcome::failures}) {
      forecast.mean.*part += share * run.*part;
    }
  }
  forecast.goodput = SpreadOf(std::move(goodput));
  forecast.steps = SpreadOf(std::move(steps));
  forecast.failures = SpreadOf(std::move(failures));
  return forecast;
}

SaveCosts RunSimulator::Costs() const {
  return {.pause = input_.checkpoint_pause,
          .written = std::max(input_.checkpoint_pause, input_.checkpoint_written),
          .restart = input_.faults.detect + input_.faults.restart,
          .mean_to_failure = input_.faults.MeanToFailure()};
}

double RunSimulator::BestInterval(int runs) const {
  const SaveCosts costs = Costs();
  if (!(costs.mean_to_failure < kNever)) return 0;
  const double middle = LeastWasteInterval(costs);
  std::vector<double> relative;
  std::vector<double> waste;
  for (const double factor : {0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8}) {
    // What is simulated has whole steps.
    const Interval interval = InSteps(middle * factor);
    relative.push_back(static_cast<double>(interval.steps) * input_.step.seconds() / middle);
    waste.push_back(1 - Predict(interval, runs).goodput.mean);
  }
  // A step that is longer than all of them leaves no choice.
  if (relative.front() == relative.back()) return relative.front() * middle;
  const std::array<double, 3> fit = Fitted(relative, waste);
  if (!(fit[1] > 0) || !(fit[2] > 0)) return middle;
  const double best = middle * std::sqrt(fit[2] / fit[1]);
  return std::max(best, costs.written - costs.pause);
}

Interval RunSimulator::InSteps(double seconds) const {
  const double steps = std::min(1e15, seconds / input_.step.seconds());
  return {.steps = std::max<int64_t>(1, std::llround(steps))};
}

}  // namespace tercio::plan::simulator
