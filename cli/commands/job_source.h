// Gathers the data of jobs for plots, comparisons and reports: from a coordinator (or state
// directory), or from files written by `tercio history -o jsonl`.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/options.h"
#include "cli/report/job_data.h"

namespace tercio::cli {

// A name that ends with .jsonl is a file. `everything`: also events, checkpoints, nodes and figures
// of ranks, which only a coordinator has (INVALID_ARGUMENT for files). The result is in the order
// of the names, with labels.
absl::StatusOr<std::vector<report::JobData>> GatherJobs(const Options& options, bool everything);

// The steps in the text of a file of `tercio history -o jsonl`. Errors have the form NAME:LINE:
// what is wrong.
absl::StatusOr<std::vector<v1::StepRecord>> ParseHistory(const std::string& text,
                                                         const std::string& name);

}  // namespace tercio::cli
