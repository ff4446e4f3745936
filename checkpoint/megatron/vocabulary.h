// The number of token ids of a tokenizer whose files lie in a directory. Megatron-LM pads its
// tables of tokens and does not say by how much, so this is how many rows are real.
//
// Threads: any.
// Errors: DATA_LOSS for a file that is not a tokenizer's.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace tercio::checkpoint {

// One more than the largest id of tokenizer.json, else of vocab.json, else the lines of vocab.txt.
// 0: none of these files is there.
absl::StatusOr<int64_t> VocabularyBeside(const std::string& directory);

}  // namespace tercio::checkpoint
