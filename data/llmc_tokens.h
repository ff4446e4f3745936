// llm.c's token files: a header of 256 int32 (magic, version, number of tokens, zeros), then the
// ids. GPT-2: magic 20240520, version 1, uint16 ids. Llama 3: magic 20240801, version 7, uint32
// ids. docs/formats.md has the layout.
//
// Errors: NOT_FOUND for a missing file, INVALID_ARGUMENT for wrong content, naming file, field and
// what was expected, else the system's error.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "data/token_dataset.h"

namespace tercio::data {

struct LlmcTokens {
  TokenType type = TokenType::kUint16;
  TokenDataset tokens;
};

// Maps the file and checks header and size. Does not look at the ids (HighestToken does).
absl::StatusOr<LlmcTokens> OpenLlmcTokens(const std::string& path);

// Whether the file begins like one of llm.c's; false, too, if it cannot be read.
bool IsLlmcFile(const std::string& path);

}  // namespace tercio::data
