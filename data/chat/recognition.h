// Which template a tokenizer comes with: `chat_template` of tokenizer_config.json, or
// chat_template.jinja beside it, compared as a whole with the texts that models are published with.
// No template is guessed by its looks: two that differ in a line may render other texts.
//
// Threads: any. Errors: NOT_FOUND: the tokenizer comes with none; INVALID_ARGUMENT: it is none of
// those, or cannot be read. Both name the way out, data.template.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "data/chat/template.h"

namespace tercio::data::chat {

// By the SHA-256, in hexadecimal, of a template's text as it is compared. Null: unknown.
const Template* TemplateOfDigest(std::string_view sha256);

// Null: unknown. White space at the ends does not count, nor does the kind of line breaks.
const Template* RecogniseTemplate(std::string_view jinja);

// `tokenizer` is data.tokenizer: a file or a directory, or the name of a tokenizer that has none.
absl::StatusOr<const Template*> TemplateOfTokenizer(const std::string& tokenizer);

}  // namespace tercio::data::chat
