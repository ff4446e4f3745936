// The prompts that `tercio generate` continues.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tokenizer/tokenizer.h"

namespace tercio::cli {

// One of both is given; EncodePrompts adds the ids of a text.
struct Prompt {
  std::optional<std::string> text;
  std::vector<int32_t> ids;
};

// The prompts of a file: a text on each line, or, in a .jsonl file, objects with "prompt" or
// "prompt_ids". Empty lines are left out; at least one. INVALID_ARGUMENT with the line; errors of
// ReadFile.
absl::StatusOr<std::vector<Prompt>> PromptsInFile(const std::string& path);

// INVALID_ARGUMENT for a text where there is no tokenizer (null).
absl::Status EncodePrompts(const std::string& checkpoint, const tokenizer::Tokenizer* tokenizer,
                           std::vector<Prompt>* prompts);

}  // namespace tercio::cli
