// The report: one self-contained page about one job, or about several beside each other.
//
// Pure. Says "not known" where something is missing: a job that waits, that failed before its first
// step, or that an old agent ran has a report, too.
#pragma once

#include <string>
#include <vector>

#include "cli/report/job_data.h"
#include "cli/report/numbers.h"

namespace tercio::report {

// `jobs` is not empty; the first is what others are compared with. `made_by`: version of this
// program; `made_at`: seconds since 1970.
std::string ReportPage(const std::vector<JobData>& jobs, const std::string& made_by,
                       double made_at);

// What the page holds for programs, and `tercio diff` prints in part.
Json ReportData(const std::vector<JobData>& jobs);

}  // namespace tercio::report
