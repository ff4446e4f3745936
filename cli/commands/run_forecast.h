// `tercio plan --cluster --simulate`: what becomes of a long run on a cluster whose nodes fail, and
// how often it should save. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/commands/cluster_plan.h"
#include "nlohmann/json.hpp"
#include "plan/simulator/run_simulator.h"

namespace tercio::cli {

// A figure that the cluster file does not give.
struct Assumption {
  std::string key;  // key in the cluster file's section `faults`
  std::string value;
  std::string source;
};

// An interval between checkpoints, whose it is, and what it comes to.
struct IntervalChoice {
  std::string key;   // in JSON
  std::string name;  // in tables
  plan::simulator::Interval interval;
  double seconds = 0;  // time between two checkpoints; 0: there are none
  plan::simulator::Forecast forecast;
  double expected_goodput = 0;  // by the closed form, with steps as long as simulated ones
};

struct RunForecast {
  plan::RankedLayout layout;
  plan::simulator::RunInput input;
  uint64_t seed = 0;
  std::vector<IntervalChoice> intervals;  // the job's first
  std::vector<Assumption> assumed;
  double tokens = 0;  // of --tokens
};

// The best layout that fits is simulated. nullopt: none is asked for, or no layout fits.
// INVALID_ARGUMENT:
// --simulate is no duration.
absl::StatusOr<std::optional<RunForecast>> ForecastRun(const ClusterPlan& plan,
                                                       const PlanOptions& options);

std::string ForecastText(const RunForecast& forecast);
nlohmann::ordered_json ForecastJson(const RunForecast& forecast);

}  // namespace tercio::cli
