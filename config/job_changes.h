// Changes to a job file from elsewhere than the command line: parsed with the file, as if they
// stood in it.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/tercio/v1/job.pb.h"
#include "yaml-cpp/yaml.h"

namespace tercio::config {

struct JobChange {
  std::vector<std::string> key;  // {"training", "steps"}; not empty
  // Takes the place of what is there, also of a whole map; null: as if the key were missing.
  YAML::Node value;
  std::string place;  // names the change in messages, in place of the file and its line
};

// As ParseJobText (job_file.h) after the changes, the later ones over the earlier ones.
absl::StatusOr<v1::JobSpec> ParseChangedJob(const std::string& text, const std::string& name,
                                            const std::string& directory,
                                            const std::vector<JobChange>& changes);

}  // namespace tercio::config
