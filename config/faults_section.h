// The section `faults` of a cluster file: how often nodes fail, and what failures, checkpoints and
// uneven ranks cost. Every key may be left out; who forecasts a run knows what to assume then.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "config/reader.h"

namespace tercio::config {

// nullopt: not given. Times are seconds, shares parts of 1.
struct FaultFigures {
  std::optional<double> node_mtbf;  // mean time between two failures of one node
  std::optional<double> detect;     // from a failure until it is noticed
  std::optional<double> restart;    // from there until steps run again
  std::optional<double> spare_nodes;
  std::optional<double> replace;               // until a failed node is back, or another for it
  std::optional<double> checkpoint_pause;      // for which steps stand still
  std::optional<double> checkpoint_write;      // from its beginning until it can be loaded
  std::optional<double> checkpoint_bandwidth;  // all nodes together, bytes a second
  std::optional<double> pass_jitter;           // relative standard deviation of a pass of one rank
  std::optional<double> step_jitter;           // a rank's passes in a step, taken together
  std::optional<double> slow_gpus;             // share of GPUs that are slower
  std::optional<double> slow_by;               // how much longer they take
};

FaultFigures ParseFaults(Section section);

// "faults.restart": the keys that --what-if may change.
std::vector<std::string> FaultKeys();

// Sets the figure of such a key; INVALID_ARGUMENT says what is expected. REQUIRES: one of
// FaultKeys.
absl::Status ChangeFault(std::string_view key, const std::string& value, FaultFigures* figures);

}  // namespace tercio::config
