// The buffers of a rank's samples ("tokens.*" of memory_map.h). Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/architecture.h"
#include "plan/stage_units.h"
#include "proto/tercio/v1/job.pb.h"

namespace tercio::plan {

// A teacher's logits were stored beforehand, some for each token that a sample predicts.
bool ReadsStoredLogits(const v1::TrainingSpec& training);

struct TokenBuffer {
  std::string name;
  int64_t elements;  // of 4 bytes, for each sequence; 0: the stage does not read them
};

// The embedding reads inputs, types, and positions that restart; a head what it predicts, and a
// teacher's logits; a bert's attention lengths, and any other documents that share a sequence.
std::vector<TokenBuffer> TokenBuffersOf(const v1::JobSpec& job, const StageShape& shape,
                                        const model::Architecture& architecture);

}  // namespace tercio::plan
