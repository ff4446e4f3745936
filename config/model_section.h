// The `model:` section of a job file.
#pragma once

#include <string>

#include "config/reader.h"
#include "proto/tercio/v1/job.pb.h"

namespace tercio::config {

// Reads the section, every default resolved; faults go to the section's list. `directory` is where
// relative paths begin; the directory that `from` names gives the sizes, and a contradiction to it
// is a fault.
void ParseModel(Section model, const std::string& directory, v1::ModelSpec* out);

// Sets the decoder's tokens of a sample, which follow from the context and the data; another number
// is a fault. REQUIRES: both sections were read, `out` and `data` from them.
void ResolveDecoderContext(Section model, const v1::DataSpec& data, v1::ModelSpec* out);

// The section as YAML that reads back as the same message.
std::string ModelYaml(const v1::ModelSpec& model);

}  // namespace tercio::config
