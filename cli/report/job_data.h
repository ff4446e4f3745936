// The data of a job for plots, comparisons and reports: from the coordinator, or as much as a file
// contains.
#pragma once

#include <string>
#include <vector>

#include "proto/tercio/v1/events.pb.h"
#include "proto/tercio/v1/job_service.pb.h"

namespace tercio::report {

struct JobData {
  std::string label;                       // its name among other jobs; unique (LabelJobs)
  bool from_file = false;                  // only `steps` are known
  v1::JobStatus status;                    // with ranks
  std::vector<v1::StepRecord> steps;       // without repeated ones, ascending
  std::vector<v1::StepRecord> lost_steps;  // steps of attempts that broke, by attempt
  std::vector<v1::JobEvent> events;
  std::vector<v1::CheckpointInfo> checkpoints;
  std::vector<v1::Node> nodes;  // nodes of the cluster that have ranks of the job
  std::string version;          // version of the coordinator
  std::string commit;
};

// Labels jobs by their names (long ones shortened) if these differ, else by name and id, and files
// by file name. Repeated labels get a number.
void LabelJobs(std::vector<JobData>* jobs);

}  // namespace tercio::report
