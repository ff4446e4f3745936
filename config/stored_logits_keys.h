// The keys of `training.distillation:` that learn from logits which a teacher has left: logits,
// top_k.
#pragma once

#include <string>

#include "config/reader.h"
#include "proto/tercio/v1/job.pb.h"

namespace tercio::config {

// Reads both keys where the section has `logits`; `directory` is where relative paths begin. Their
// header says how many logits each token has, and which vocabulary the teacher; where only nodes
// can see that, the section has to say the first. Without `logits`, `top_k` is a fault.
void ParseStoredLogits(Section& distillation, const std::string& directory,
                       v1::DistillationSpec* out);

// Both keys as YAML that reads back as the same message, "logits: ..., top_k: 64"; empty without
// stored logits.
std::string StoredLogitsYaml(const v1::DistillationSpec& spec);

}  // namespace tercio::config
