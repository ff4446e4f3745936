// An adapter of peft and the model that it is for become one checkpoint: step 0, weights without
// moments, from which jobs continue.
//
// Errors: those of PeftAdapter, of the model and of OutputDirectory; NOT_FOUND where `base` is
// empty and the adapter names no directory of this machine.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "checkpoint/import_weights.h"

namespace tercio::checkpoint {

// `base`: any model that jobs can start from; empty: what the adapter names.
absl::StatusOr<ImportResult> ImportPeft(const std::string& directory, const std::string& base,
                                        const std::string& output, const ImportOptions& options);

}  // namespace tercio::checkpoint
