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
  std::string text;      // this token's own bytes; not UTF-8 where it splits a character
  bool counts = false;   // for the loss
  int conversation = 0;  // its number within the sample, which may hold several
};

// The tokens of a sample of a causal model. The last one of a conversation is among them if it
// counts: else the model does not see it. INVALID_ARGUMENT: an id that the tokenizer does not have.
absl::StatusOr<std::vector<PreviewToken>> PreviewTokens(const data::Sample& sample,
                                                        const tokenizer::Tokenizer& tokenizer);

enum class CountedMarks { kColours, kBrackets };

// Conversations of a sample.
int Conversations(const std::vector<PreviewToken>& tokens);

// The text of the tokens: what counts in green, or between [[ and ]]; a line "--- conversation 2"
// before each further conversation.
std::string PreviewText(const std::vector<PreviewToken>& tokens, CountedMarks marks);

// {"sample", "tokens": [{"id", "text", "counts"}], "counted"}; where samples hold several
// conversations, each token has the number of its "conversation" in the sample, from 1 on.
Json PreviewJson(int64_t sample, const std::vector<PreviewToken>& tokens, bool packed);

int64_t CountedTokens(const std::vector<PreviewToken>& tokens);

}  // namespace tercio::cli
