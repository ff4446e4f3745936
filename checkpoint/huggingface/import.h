// A Hugging Face directory becomes a checkpoint: step 0, weights without moments. The files beside
// the weights are kept as they are under hf/, with what is needed to write the same directory again
// (checkpoint/huggingface/export.h):
//
//   hf/config.json, hf/tokenizer.json, ...   copies
//   hf/<weight file>.header                  the safetensors header of each weight file
//   hf/buffers.safetensors                   tensors that are not weights (causal masks)
//
// Errors: those of HuggingFaceModel and OutputDirectory.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/output_directory.h"
#include "proto/tercio/v1/job.pb.h"

namespace tercio::checkpoint {

inline constexpr char kKeptFolder[] = "hf/";
inline constexpr char kHeaderSuffix[] = ".header";
inline constexpr char kBuffersFile[] = "hf/buffers.safetensors";

struct ImportResult {
  v1::ModelSpec model;
  int64_t parameters = 0;
  int64_t bytes = 0;
  std::vector<std::string> kept;  // names of the files copied
};

absl::StatusOr<ImportResult> ImportHuggingFace(const std::string& directory,
                                               const std::string& output,
                                               const WriteProgress& progress = {});

// Whether a file of this name belongs to the tokenizer.
bool IsTokenizerFile(std::string_view name);
// Files beside the weights that are kept, ascending: configuration, tokenizer, index.
std::vector<std::string> KeptFiles(const std::string& directory);

}  // namespace tercio::checkpoint
