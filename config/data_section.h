// The `data:` section of a job file.
#pragma once

#include <string>

#include "config/reader.h"
#include "proto/tercio/v1/job.pb.h"

namespace tercio::config {

// Whether a job may have no training data: one of no steps only evaluates its data.test.
enum class TrainingData { kRequired, kMayBeMissing };

// Reads the section, every default resolved; faults go to the section's list. `directory` is where
// relative paths begin; `model` is the model section as it was read: its kind says which keys there
// are, and model.from has the default tokenizer. Whether the files exist is checked by the
// nodes.
void ParseData(Section data, const std::string& directory, const v1::ModelSpec& model,
               TrainingData training_data, Faults* faults, v1::DataSpec* out);

// The section as YAML that reads back as the same message.
std::string DataYaml(const v1::DataSpec& data);

}  // namespace tercio::config
