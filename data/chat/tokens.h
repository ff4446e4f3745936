// The ids of a rendered conversation, and which of them count for the loss.
//
// Special tokens that stand in the text are found as the tokenizer finds them in any text, so that
// the ids are those of transformers' apply_chat_template(tokenize=True). A token counts if it holds
// at least a byte of what counts; at the edges of a range a token may hold others, too.
//
// Pure; safe from any thread. Errors: INVALID_ARGUMENT, the tokenizer's.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "data/chat/template.h"
#include "tokenizer/tokenizer.h"

namespace tercio::data::chat {

enum class LossOn {
  kAssistant,  // all that the assistant says
  kAll,
  kLast,  // the last turn of the assistant
};

struct ChatTokens {
  std::vector<int32_t> ids;
  std::vector<bool> counts;  // for each id, whether it is predicted
};

absl::StatusOr<ChatTokens> Tokenize(const Rendered& rendered, LossOn loss_on,
                                    const tokenizer::Tokenizer& tokenizer);

// Options for a tokenizer: the texts of its own tokens for the beginning and the end of a text,
// where it has some, else the template's.
RenderOptions OptionsFor(const Template& chat_template, const tokenizer::Tokenizer& tokenizer);

// Special tokens of the template that the tokenizer writes as several tokens.
std::vector<std::string> MissingTokens(const Template& chat_template,
                                       const tokenizer::Tokenizer& tokenizer);

}  // namespace tercio::data::chat
