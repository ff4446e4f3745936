// The report: one self-contained page about one job, or about several side by side.
//
// Pure. Shows "not known" for missing values: a job that waits, that failed before its first step,
// or that an old agent ran has a report, too.
#pragma once

#include <string>
#include <vector>

#include "cli/report/job_data.h"
#include "cli/report/numbers.h"

namespace tercio::report {

// `jobs` is not empty; the others are compared with the first. `made_by`: version of this program;
// `made_at`: seconds since 1970.
std::string ReportPage(const std::vector<JobData>& jobs, const std::string& made_by,
                       double made_at);

// The data of the page for programs, which `tercio diff` prints in part.
Json ReportData(const std::vector<JobData>& jobs);

}  // namespace tercio::report
