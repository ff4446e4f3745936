// Gathers the data of jobs for plots, comparisons and reports: from a coordinator (or state
// directory), or from files written by `tercio history -o jsonl`.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/client.h"
#include "cli/global_options.h"
#include "cli/report/job_data.h"

namespace tercio::cli {

// What is read of a job.
enum class GatheredData { kSteps, kAll };

// Reads each job from the coordinator of `options`, or from a file if its name ends with .jsonl.
// `GatheredData::kAll` adds events, checkpoints, nodes and per-rank figures, which only a
// coordinator has (INVALID_ARGUMENT for files). Returns the jobs, labelled, in the order of their
// names.
absl::StatusOr<std::vector<report::JobData>> GatherJobs(const GlobalOptions& options,
                                                        const std::vector<std::string>& names,
                                                        GatheredData data);

// Everything about one job, labelled by its name.
absl::StatusOr<report::JobData> GatherJob(Client& client, const std::string& name);

// The steps in the text of a file of `tercio history -o jsonl`. Errors have the form NAME:LINE:
// what is wrong.
absl::StatusOr<std::vector<v1::StepRecord>> ParseHistory(const std::string& text,
                                                         const std::string& name);

}  // namespace tercio::cli
