// What plots, comparisons and reports know of a job: as the coordinator tells it, or as far as a
// file holds it.
#pragma once

#include <string>
#include <vector>

#include "proto/tercio/v1/events.pb.h"
#include "proto/tercio/v1/job_service.pb.h"

namespace tercio::report {

struct JobData {
  std::string label;       // what it is called beside others; unique among them (LabelJobs)
  bool from_file = false;  // only `steps` are known
  v1::JobStatus status;    // with ranks
  std::vector<v1::StepRecord> steps;       // those that count, ascending
  std::vector<v1::StepRecord> lost_steps;  // of attempts that broke, by attempt
  std::vector<v1::JobEvent> events;
  std::vector<v1::CheckpointInfo> checkpoints;
  std::vector<v1::Node> nodes;  // of the cluster, those of the job's ranks
  std::string version;          // of the coordinator
  std::string commit;
};

// Names (long ones shortened) where they differ, else name and id; of a file its name. The same
// source twice gets a number.
void LabelJobs(std::vector<JobData>* jobs);

}  // namespace tercio::report
