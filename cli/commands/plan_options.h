// Which options of `tercio plan` mean something together. Pure, but that what the environment gives
// for a coordinator counts as not given.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cli/commands/commands.h"

namespace tercio::cli {

// What the verb prints. All but the first are asked for by an option.
enum class PlanMode { kLayouts, kTensors, kProgram, kEffective, kCluster, kJob };

// The option that asks for a mode, with a value as help shows it: "--cluster CLUSTER.yaml"; empty
// for kLayouts.
std::string OptionOf(PlanMode mode);

struct PlanOption {
  const char* name;  // as the verb declares it: "--weak"
  bool (*given)(const PlanOptions& options);
  std::vector<PlanMode> modes;  // those in which it has an effect
  const char* needs = "";       // the option without which it has none, with a value; empty: none
};

// All options of the verb, in the order of its help.
const std::vector<PlanOption>& AllPlanOptions();

// INVALID_ARGUMENT: an option that would have no effect, and what to add or to leave out; or
// neither a job file nor --job.
absl::Status CheckPlanOptions(const PlanOptions& options);

}  // namespace tercio::cli
