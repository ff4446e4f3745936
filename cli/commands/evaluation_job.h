// `evaluate --job`: a job of no steps evaluates a checkpoint, with the ranks and in the layout of a
// job file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "cli/commands/commands.h"
#include "proto/tercio/v1/events.pb.h"
#include "proto/tercio/v1/job.pb.h"

namespace tercio::cli {

struct JobEvaluation {
  v1::Evaluation evaluation;
  v1::ModelSpec model;
  std::optional<int64_t> tokens;  // that were predicted; absent: not known
};

// Runs the job in a temporary state directory, and calls `print` when it has succeeded. Returns the
// exit code. INVALID_ARGUMENT for options that such a job cannot honour, for a job file of another
// model than the checkpoint's, and where neither it nor the command line names data.
absl::StatusOr<int> EvaluateAsJob(const EvaluateOptions& options, const std::string& checkpoint,
                                  absl::FunctionRef<void(const JobEvaluation& found)> print);

}  // namespace tercio::cli
