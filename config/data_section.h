// The `data:` section of a job file.
#pragma once

#include <string>

#include "config/reader.h"
#include "proto/tercio/v1/job.pb.h"

namespace tercio::config {

// Whether a job may have no training data: one of no steps only evaluates its data.test.
enum class TrainingData { kRequired, kMayBeMissing };

// What the training section says of the data: which keys this section may and must have.
struct DataUse {
  TrainingData training_data = TrainingData::kRequired;
  v1::TrainingObjective objective = v1::TRAINING_OBJECTIVE_PRETRAIN;
};

// Reads the section, every default resolved; faults go to the section's list. `directory` is where
// relative paths begin; `model` is the model section as it was read: its kind says which keys there
// are, and model.from has the default tokenizer. Whether the files exist is checked by the
// nodes.
void ParseData(Section data, const std::string& directory, const v1::ModelSpec& model, DataUse use,
               Faults* faults, v1::DataSpec* out);

// The section as YAML that reads back as the same message.
std::string DataYaml(const v1::DataSpec& data);

}  // namespace tercio::config
