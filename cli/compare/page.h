// The page of an experiment: the methods side by side, and a report (cli/report/report.h) of its
// variants.
//
// Pure. Shows "not known" for missing values.
#pragma once

#include <string>
#include <vector>

#include "cli/compare/results.h"
#include "cli/report/job_data.h"

namespace tercio::compare {

// `jobs`: one run of each variant that has one, labelled with the variants' names. `made_by`:
// version of this program; `made_at`: seconds since 1970.
std::string ComparePage(const Results& results, const std::vector<report::JobData>& jobs,
                        const std::string& made_by, double made_at);

// A table for people: a row for each method, the first row is the head.
std::vector<std::vector<std::string>> ResultRows(const Results& results);

}  // namespace tercio::compare
