// A Megatron-LM checkpoint becomes a checkpoint: step 0, weights without moments.
//
// Errors: those of MegatronModel and OutputDirectory.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "checkpoint/import_weights.h"

namespace tercio::checkpoint {

absl::StatusOr<ImportResult> ImportMegatron(const std::string& directory, const std::string& output,
                                            const ImportOptions& options = {});

}  // namespace tercio::checkpoint
