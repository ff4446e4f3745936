// The key `distillation` of the training section: what objective distill learns from, beside the
// tokens themselves (plan/distillation.h).
#pragma once

#include <string>

#include "config/reader.h"
#include "proto/tercio/v1/job.pb.h"

namespace tercio::config {

// Reads it into the training of `job`, whose model and data were read before, every default
// resolved. `directory` is where relative paths begin; the teacher's directory says what model it
// is. With another objective there is no such key.
void ParseDistillation(Section& training, const std::string& directory, v1::JobSpec* job);

// The key as YAML that reads back as the same message; empty: the objective has none.
std::string DistillationYaml(const v1::TrainingSpec& training);

}  // namespace tercio::config
