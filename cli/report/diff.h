// Comparison of two jobs: configuration, plan, results.
//
// Pure.
#pragma once

#include <string>
#include <vector>

#include "cli/report/job_data.h"
#include "cli/report/numbers.h"

namespace tercio::report {

// {"jobs", "configuration": {key: [a, b]}, "plan": ..., "results": [{name, a, b, ratio}], "losses"}
Json DiffToJson(const JobData& a, const JobData& b);

// Rows for a table of the command line: a heading has one cell, a row name, a, b, ratio.
std::vector<std::vector<std::string>> DiffRows(const JobData& a, const JobData& b);

}  // namespace tercio::report
