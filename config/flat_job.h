// A job as a list of dotted keys with their values, for comparisons. Pure.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "proto/tercio/v1/job.pb.h"

namespace tercio::config {

// The complete job file in its order: {"training.steps", "2000"}. The keys are those of --set;
// lists are one value.
std::vector<std::pair<std::string, std::string>> FlatJob(const v1::JobSpec& spec);

}  // namespace tercio::config
