// The adapter of a checkpoint becomes a directory that peft loads: adapter_model.safetensors (fp32)
// and adapter_config.json. Tensors that were trained beside the adapter are saved as peft's
// modules_to_save, with all of the module that they are in. Beside them tercio_base.json says which
// weights it was trained beside (checkpoint/base_digest.h), where these can still be read.
//
// Errors: those of Reader and OutputDirectory; INVALID_ARGUMENT for a checkpoint without adapters.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "checkpoint/huggingface/export.h"

namespace tercio::checkpoint {

absl::StatusOr<ExportResult> ExportPeft(const std::string& checkpoint, const std::string& output);

}  // namespace tercio::checkpoint
