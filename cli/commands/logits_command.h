// `evaluate --write-logits`: a teacher's largest logits of the tokens that a student's job
// predicts.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "cli/commands/commands.h"

namespace tercio::cli {

// Returns the exit code. `teacher`: the directory of its weights. INVALID_ARGUMENT for options that
// do not belong to it, for a job that learns from no teacher, and for a teacher of another
// vocabulary, tokenizer or shorter context.
absl::StatusOr<int> WriteTeacherLogits(const EvaluateOptions& options, const std::string& teacher);

}  // namespace tercio::cli
