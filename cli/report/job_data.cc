#include "cli/report/job_data.h"

#include <map>

#include "absl/strings/str_cat.h"
#include "cli/plot/svg.h"

namespace tercio::report {
namespace {

// Longest name shown beside others: a longer one fills legends and table heads.
constexpr size_t kLongestName = 48;

std::string NameOf(const JobData& job) { return plot::Shortened(job.status.name(), kLongestName); }

}  // namespace

void LabelJobs(std::vector<JobData>* jobs) {
  std::map<std::string, int> names;
  // Names count only after they were shortened, as that is how they are shown.
  for (const JobData& job : *jobs) ++names[NameOf(job)];
  std::map<std::string, int> labels;
  for (JobData& job : *jobs) {
    if (job.from_file) continue;
    const v1::JobStatus& status = job.status;
    const std::string name = NameOf(job);
    if (name.empty()) {
      job.label = status.id();
    } else {
      job.label = names[name] == 1 ? name : absl::StrCat(name, " (", status.id(), ")");
    }
  }
  // Two files, or a file and a job, may still share a label.
  for (JobData& job : *jobs) {
    const int times = ++labels[job.label];
    if (times > 1) absl::StrAppend(&job.label, " #", times);
  }
}

}  // namespace tercio::report
