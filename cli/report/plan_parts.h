// The parts of a step as the planner predicted them, beside what the ranks of the job measured.
// Pure.
#pragma once

#include <optional>
#include <vector>

#include "cli/report/job_data.h"
#include "cli/report/numbers.h"

namespace tercio::report {

struct PlanPart {
  const char* key;   // in JSON
  const char* name;  // for people
  const char* unit;  // "s", "tokens/s" or "bytes"
  std::optional<double> predicted;
  std::optional<double> measured;
};

// Computing, waiting for other ranks, optimizer, the rest, the whole step; tokens per second and
// memory. Measured parts are means over the steps of the current or last attempt, of the rank that
// computes longest; on GPUs, where the host only enqueues work, they are not known. Waiting holds
// all that the planner calls tensor communication, bubble, transfers and exposed data.
std::vector<PlanPart> PlanPartsOf(const JobData& job, const Numbers& numbers);

Json PlanPartsJson(const std::vector<PlanPart>& parts);

}  // namespace tercio::report
