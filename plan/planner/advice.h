// What would help a job that does not fit, or is refused: changes of its settings, each of them
// tried by the functions that refused it. Pure.
#pragma once

#include <string>
#include <vector>

#include "plan/planner/cluster.h"
#include "proto/tercio/v1/job.pb.h"
#include "proto/tercio/v1/plan.pb.h"

namespace tercio::plan {

struct Advice {
  std::string setting;       // "parallelism.zero_stage=1", as a job file or --set has it
  int64_t memory_bytes = 0;  // of the rank that needs most
  double step_ratio = 1;     // of the predicted times of a step, with the setting over without
};

// Settings with which a layout that is too large fits on the cluster: each alone, and two together
// only where none suffices. More ranks come last. REQUIRES: a job whose vocabulary is known.
std::vector<Advice> SettingsThatFit(const v1::JobSpec& job, const v1::Layout& layout,
                                    const Cluster& cluster);

// "; it fits with parallelism.zero_stage=1 (812.3 MiB, a step takes 0.97 times as long), or ...".
// Empty: there is no advice.
std::string AdviceText(const std::vector<Advice>& advice);

}  // namespace tercio::plan
