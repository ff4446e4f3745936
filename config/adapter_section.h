// The `adapter:` section of a job file: what is trained beside a frozen model.
#pragma once

#include <string>

#include "config/reader.h"
#include "proto/tercio/v1/job.pb.h"

namespace tercio::config {

// Reads the section, every default resolved, where the file has one; faults go to the section's
// list. `directory` is where relative paths begin. REQUIRES: the model section was read into
// `model`.
void ParseAdapter(Section& root, const std::string& directory, v1::ModelSpec* model);

// The section as YAML that reads back as the same message; empty where the model has no adapters.
std::string AdapterYaml(const v1::ModelSpec& model);

}  // namespace tercio::config
