// What `tercio plan --program` prints: what each stage's ranks do in a step, in order.
#pragma once

#include <string>

#include "nlohmann/json.hpp"
#include "proto/tercio/v1/job.pb.h"
#include "proto/tercio/v1/plan.pb.h"

namespace tercio::cli {

// A line for each step of each stage (plan/program.h). REQUIRES: a possible layout.
std::string ProgramText(const v1::JobSpec& job, const v1::Layout& layout);

// {"layout": {"tensor", "pipeline", "data"}, "stages": [[TEXT]]}
nlohmann::ordered_json ProgramJson(const v1::JobSpec& job, const v1::Layout& layout);

}  // namespace tercio::cli
