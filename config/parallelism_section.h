// The `parallelism:` and `offload:` sections of a job file.
#pragma once

#include <string>

#include "config/reader.h"
#include "proto/tercio/v1/job.pb.h"

namespace tercio::config {

// Reads the section of the file's root, every default resolved; faults go to the root's list.
// Without the section, or with `auto`, every degree is left to the planner.
void ParseParallelism(Section& root, v1::ParallelismSpec* out);
// A fault where parallelism.stage_layers are not the layers of the model. After both were read.
void CheckStageLayers(Section& root, const v1::JobSpec& spec);
void ParseOffload(Section offload, v1::OffloadSpec* out);

// The sections as YAML that reads back as the same message.
std::string ParallelismYaml(const v1::ParallelismSpec& parallelism);
std::string OffloadYaml(const v1::OffloadSpec& offload);
// The value of reshard_after_forward: true, false, or a number of ranks.
std::string ReshardText(int ranks);

}  // namespace tercio::config
