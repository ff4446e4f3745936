// A Hugging Face directory becomes a checkpoint: step 0, weights without moments. The files beside
// the weights are kept as they are under hf/, with what is needed to write the same directory again
// (checkpoint/huggingface/export.h):
//
//   hf/config.json, hf/tokenizer.json, ...   copies
//   hf/<weight file>.header                  the safetensors header of each weight file
//   hf/buffers.safetensors                   tensors that are not weights (causal masks, heads of
//                                            tasks that the model does not have)
//
// A directory with files of torch gets the headers that current versions of transformers would
// write: their names, without buffers and copies of tied tensors.
//
// All weights that a job can start from are imported, those of other tasks than config.json's too.
//
// Errors: those of HuggingFaceModel and OutputDirectory.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/import_weights.h"
#include "checkpoint/output_directory.h"

namespace tercio::checkpoint {

inline constexpr char kKeptFolder[] = "hf/";
inline constexpr char kHeaderSuffix[] = ".header";
inline constexpr char kBuffersFile[] = "hf/buffers.safetensors";

absl::StatusOr<ImportResult> ImportHuggingFace(const std::string& directory,
                                               const std::string& output,
                                               const ImportOptions& options = {});

// Whether a file of this name belongs to the tokenizer.
bool IsTokenizerFile(std::string_view name);
// Files beside the weights that are kept, ascending: configuration, tokenizer, index.
std::vector<std::string> KeptFiles(const std::string& directory);

}  // namespace tercio::checkpoint
