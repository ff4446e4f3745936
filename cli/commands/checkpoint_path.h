// Resolves what users give as a checkpoint to a directory.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace tercio::cli {

// `given` itself when it is a checkpoint, a Hugging Face directory or a Megatron-LM checkpoint,
// else the newest checkpoint in it (the directory of a job's checkpoints); with `step` above 0 that
// of this step. NOT_FOUND.
absl::StatusOr<std::string> FindCheckpoint(const std::string& given, int64_t step);

// Bytes of "5GB", "500MiB", "1000"; INVALID_ARGUMENT for anything else, and below 1.
absl::StatusOr<int64_t> ParseSize(const std::string& text);

}  // namespace tercio::cli
