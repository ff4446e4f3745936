// The key `preference` of the training section: how objectives dpo, orpo and kto make a loss of
// answers (plan/preference.h).
#pragma once

#include <string>

#include "config/reader.h"
#include "proto/tercio/v1/job.pb.h"

namespace tercio::config {

// Reads it into `out`, every default resolved, and checks that the batch of `out`, which was read
// before, cuts no pair of answers. With another objective there is no such key.
void ParsePreference(Section& training, v1::TrainingSpec* out);

// The key as YAML that reads back as the same message; empty: the objective has none.
std::string PreferenceYaml(const v1::TrainingSpec& training);

}  // namespace tercio::config
