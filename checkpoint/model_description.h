// The sizes of the model in a directory, read without its weights: from config.json of a Hugging
// Face directory, manifest.json of a checkpoint, or the arguments in a Megatron-LM checkpoint.
// Light, so that the job file's reader may use it.
//
// Threads: any.
// Errors: NOT_FOUND when the directory is none of these, DATA_LOSS for a file that cannot be
// understood, INVALID_ARGUMENT for a model that Tercio does not support; every fault is named.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/tercio/v1/job.pb.h"

namespace tercio::checkpoint {

// kPeft: an adapter, with the model that it names.
enum class ModelFormat { kCheckpoint, kHuggingFace, kMegatron, kPeft };
absl::StatusOr<ModelFormat> FormatOfModel(const std::string& directory);

// The file that DescribeModel reads: names a place in messages.
absl::StatusOr<std::string> DescriptionFile(const std::string& directory);

// The model with `from` and `dropout` empty: they belong to a job.
absl::StatusOr<v1::ModelSpec> DescribeModel(const std::string& directory);

// DATA_LOSS when no model can have these numbers: files are not trusted.
absl::Status CheckPossibleModel(const v1::ModelSpec& model, const std::string& path);

// A key of the job file's model section in which two models differ. A shorter context is not a
// difference.
struct ModelDifference {
  std::string key;
  std::string ours;
  std::string theirs;
};
std::vector<ModelDifference> DifferencesOf(const v1::ModelSpec& model, const v1::ModelSpec& source);

}  // namespace tercio::checkpoint
