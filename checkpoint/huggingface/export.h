// A checkpoint becomes a directory that transformers loads.
//
// One that was imported (checkpoint/huggingface/import.h) becomes the directory it came from: the
// same files with the same tensors, names, dtypes and bits, everything beside them copied; files of
// torch become safetensors. Any
// other gets fp32 weights under transformers' names, a config.json (that of the directory the
// training started from, model.from, while it can still be read, else one made from the model) and
// the tokenizer's files (tokenizer/export/huggingface_tokenizer.h; those of that directory, where
// the tokenizer is the same). In another dtype, numbers are rounded to the nearest.
//
// Errors: those of Reader and OutputDirectory; INVALID_ARGUMENT when the architecture's Hugging
// Face form cannot express the model.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/float_format.h"
#include "checkpoint/output_directory.h"
#include "proto/tercio/v1/job.pb.h"

namespace tercio::checkpoint {

inline constexpr int64_t kLargestShard = 5'000'000'000;

struct ExportOptions {
  // Bytes of tensors in one file; 0: the files that were imported, else kLargestShard. A tensor is
  // never divided.
  int64_t max_shard_bytes = 0;
  // Format of all weights; nullopt: that of the imported files, else fp32.
  std::optional<FloatFormat> dtype;
  bool merge = false;  // adds an adapter's products to the weights; INVALID_ARGUMENT without one
  WriteProgress progress = {};
};

struct ExportResult {
  v1::ModelSpec model;
  int64_t step = 0;
  int64_t bytes = 0;
  std::vector<std::string> files;
  std::vector<std::string> notes;  // notices for the user, for stderr
};

absl::StatusOr<ExportResult> ExportHuggingFace(const std::string& checkpoint,
                                               const std::string& output,
                                               const ExportOptions& options);

}  // namespace tercio::checkpoint
