// A job's configuration key by key, and the differences between jobs.
//
// Pure.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "proto/tercio/v1/job.pb.h"
#include "proto/tercio/v1/job_service.pb.h"

namespace tercio::report {

using KeyValues = std::vector<std::pair<std::string, std::string>>;

// The complete job file with dotted keys, in its order: {"training.steps", "2000"}. Lists are one
// value.
KeyValues ConfigurationOf(const v1::JobSpec& spec);

// The layout and the values derived from it; empty if there is no plan yet.
KeyValues PlanOf(const v1::JobStatus& status);

struct Difference {
  std::string key;
  std::vector<std::string> values;  // one per job; empty: the job has no such key
};
// In the order of the first list; keys of later lists only come at the end.
std::vector<Difference> DifferencesOf(const std::vector<KeyValues>& jobs);

}  // namespace tercio::report
