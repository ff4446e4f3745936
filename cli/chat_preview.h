// Samples of conversations as `tercio data preview` shows them. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/format.h"
#include "data/sample_source.h"
#include "tokenizer/tokenizer.h"

namespace tercio::cli {

struct PreviewToken {
  int32_t id = 0;
  std::string text;     // this token's own bytes; not UTF-8 where it splits a character
  bool counts = false;  // for the loss
};

// The tokens of a sample of a causal model. Its last one is among them if it counts: else the model
// does not see it. INVALID_ARGUMENT: an id that the tokenizer does not have.
absl::StatusOr<std::vector<PreviewToken>> PreviewTokens(const data::Sample& sample,
                                                        const tokenizer::Tokenizer& tokenizer);

enum class CountedMarks { kColours, kBrackets };

// The text of the tokens: what counts in green, or between [[ and ]].
std::string PreviewText(const std::vector<PreviewToken>& tokens, CountedMarks marks);

// {"sample", "tokens": [{"id", "text", "counts"}], "counted"}
Json PreviewJson(int64_t sample, const std::vector<PreviewToken>& tokens);

int64_t CountedTokens(const std::vector<PreviewToken>& tokens);

}  // namespace tercio::cli
