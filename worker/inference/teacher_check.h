// Whether the teacher of a job (plan/distillation.h) is what the job says, and knows its tokens.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "proto/tercio/v1/job.pb.h"

namespace tercio::inference {

// `tokenizer_json`: the data's tokenizer as checkpoints hold it; empty: there is none, and ids are
// taken for the teacher's. Reads every byte of a checkpoint. Every message names the directory:
// NOT_FOUND | DATA_LOSS | INVALID_ARGUMENT from it, FAILED_PRECONDITION: another model than the
// job's, INVALID_ARGUMENT: other tokens.
absl::Status CheckTeacher(const v1::DistillationSpec& spec, const std::string& tokenizer_json,
                          int32_t data_vocabulary);

}  // namespace tercio::inference
