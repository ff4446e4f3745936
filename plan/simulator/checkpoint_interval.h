// How often to save: the intervals of Young 1974 and Daly 2006, and the expected waste of any
// interval in closed form. Pure. All times are seconds; an interval is the time of steps between
// two checkpoints, without the checkpoint itself.
//
// Failures are a Poisson process with a mean of M between two of them, and strike at any time, also
// while the job saves or restarts.
#pragma once

namespace tercio::plan::simulator {

struct SaveCosts {
  double pause = 0;            // for which steps stand still
  double written = 0;          // from its beginning until a restart can load it; below pause: pause
  double restart = 0;          // from a failure until steps run again
  double mean_to_failure = 0;  // M, of the whole job
};

// "A first order approximation to the optimum checkpoint interval" (Comm. ACM 17(9)): sqrt(2 C M).
double YoungInterval(const SaveCosts& costs);

// "A higher order estimate of the optimum checkpoint interval for restart dumps" (FGCS 22(3),
// equation 37): sqrt(2 C M) (1 + sqrt(C / 2M) / 3 + C / 18M) - C where C < 2 M, else M.
double DalyInterval(const SaveCosts& costs);

// The share of a long run that is no step which is kept: 1 - goodput. From Daly's complete model
// (equation 20): a job needs M e^(R/M) (e^((I + C)/M) - 1) seconds for I seconds of steps. Where a
// checkpoint is loadable only `written` seconds after its beginning, a failure before that loses
// one more interval; and an interval that is shorter than the writing is as long as that, since a
// checkpoint that is due while the last one is being written is skipped. REQUIRES: wanted > 0.
double ExpectedWaste(const SaveCosts& costs, double wanted);
// The same for small rates: C / (I + C) + (I + C) / 2M + R / M, and the loss of unwritten saves.
double FirstOrderWaste(const SaveCosts& costs, double wanted);

// The interval whose ExpectedWaste is least, by golden sections.
double LeastWasteInterval(const SaveCosts& costs);

}  // namespace tercio::plan::simulator
