#include "cli/report/job_data.h"

#include <map>

#include "absl/strings/str_cat.h"

namespace tercio::report {

void LabelJobs(std::vector<JobData>* jobs) {
  std::map<std::string, int> names;
  for (const JobData& job : *jobs) ++names[job.status.name()];
  std::map<std::string, int> labels;
  for (JobData& job : *jobs) {
    if (job.from_file) continue;
    const v1::JobStatus& status = job.status;
    if (status.name().empty()) {
      job.label = status.id();
    } else {
      job.label = names[status.name()] == 1 ? status.name()
                                            : absl::StrCat(status.name(), " (", status.id(), ")");
    }
  }
  for (JobData& job : *jobs) {
    const int times = ++labels[job.label];
    if (times > 1) absl::StrAppend(&job.label, " #", times);
  }
}

}  // namespace tercio::report
