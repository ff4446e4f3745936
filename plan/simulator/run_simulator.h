// A long run as discrete events: steps, checkpoints, failures, restarts, nodes that are replaced.
// Pure: the same input and seed give the same result.
//
// Failures of nodes are a Poisson process in wall time; each stops the job, which restarts from the
// newest checkpoint that was written by then, on a spare node or when a failed one is back. A
// failure while the job restarts makes the restart begin again. A checkpoint stops all steps for
// its pause and can be loaded once it is written; one that is due while the last is being written
// is skipped, as the trainer does. docs/planner.md has the assumptions and the comparison with
// published runs.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "plan/simulator/checkpoint_interval.h"
#include "plan/simulator/draws.h"
#include "plan/simulator/step_times.h"

namespace tercio::plan::simulator {

// Spare nodes without limit: a failed node is replaced at once.
inline constexpr int kAlwaysSpare = -1;

struct FaultModel {
  int nodes = 1;
  double node_mtbf = 0;  // mean seconds between two failures of one node; 0: there are none
  double detect = 0;     // seconds until a failure is noticed
  double restart = 0;    // from there until steps run again, once the job has all its nodes
  int spare_nodes = kAlwaysSpare;
  double replace = 0;  // seconds until a failed node is back, or another in its place

  // Mean seconds between failures of the job; infinite without any.
  double MeanToFailure() const;
};

// When checkpoints are due: after so many steps, or at the first step so many seconds after the
// last, whichever is earlier. 0: not by that. With neither there are none.
struct Interval {
  int64_t steps = 0;
  double seconds = 0;
};

struct RunInput {
  StepShape step;
  Disturbances disturbances;
  FaultModel faults;
  double checkpoint_pause = 0;    // for which steps stand still
  double checkpoint_written = 0;  // from its beginning until it can be loaded; below pause: pause
  Interval interval;
  double length = 0;  // wall seconds
};

// Seconds of a run; they add up to its length. Of many runs: their mean.
struct RunOutcome {
  double useful = 0;       // steps that are kept, in the time that was predicted for them
  double slower = 0;       // what those steps took longer: jitter, slow devices
  double checkpoints = 0;  // pauses
  double lost = 0;         // steps that were computed and are not kept
  double restarts = 0;     // from failures until steps ran again
  double steps = 0;        // that are kept
  double failures = 0;

  double length() const { return useful + slower + checkpoints + lost + restarts; }
  double goodput() const { return useful / length(); }
};

struct Spread {
  double mean = 0;
  double low = 0;   // a tenth of the runs have less
  double high = 0;  // a tenth have more
};

struct Forecast {
  RunOutcome mean;
  Spread goodput;
  Spread steps;
  Spread failures;
  int runs = 0;
};

// Draws runs and keeps what all of them share. Threads: one for each.
class RunSimulator {
 public:
  // REQUIRES: times that are not negative, a step above 0, length above 0.
  RunSimulator(const RunInput& input, uint64_t seed);

  // The run of this number: failures and steps are drawn from the seed and the number, and are the
  // same whatever the interval is, so that intervals can be compared.
  RunOutcome Run(uint64_t number, const Interval& interval) const;
  // All quantities of so many runs; of fewer where they have very many checkpoints.
  Forecast Predict(const Interval& interval, int runs) const;

  // The costs that the formulas of checkpoint_interval.h ask for.
  SaveCosts Costs() const;
  // The interval with the greatest mean goodput: a + b / I + c I is fitted to simulated intervals
  // around the one of least expected waste, since the goodput of one interval is known no better
  // than what is between neighbours. 0: no checkpoint pays (there are no failures).
  double BestInterval(int runs) const;
  // In whole steps, at least one.
  Interval InSteps(double seconds) const;

 private:
  RunInput input_;
  uint64_t seed_;
  StepSampler sampler_;
};

}  // namespace tercio::plan::simulator
