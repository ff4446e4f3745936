// Chat templates: how published models write conversations. Each is a function of our own that
// gives what transformers' apply_chat_template renders from the template of the model that it is
// named after, byte by byte (tests/chat/make_chat_fixtures.py has the models and where their
// templates come from; template_test.cc compares).
//
//   chatml   <|im_start|>ROLE ... <|im_end|>     OpenHermes 2.5 and many others
//   llama2   [INST] ... [/INST]                  Llama-2-chat
//   llama3   <|start_header_id|>ROLE ...         Meta-Llama-3-Instruct
//   llama3.1 the same with tools and a date      Llama-3.1-Instruct, 3.2 and 3.3
//   vicuna   USER: ... ASSISTANT: ...            Vicuna 1.1 and 1.5, as FastChat writes it
//   alpaca   ### Instruction: ... ### Response:  Alpaca
//   zephyr   <|user|> ... </s>                   zephyr-7b-beta
//   gemma    <start_of_turn>user ...             gemma-it, gemma-2-it
//   phi3     <|user|> ... <|end|>                Phi-3-mini
//   qwen     chatml with tools and a default     Qwen2.5-Instruct
//   mistral  [INST] ... [/INST] with tools       Mistral-7B-Instruct-v0.3
//
// Pure; safe from any thread. Errors: INVALID_ARGUMENT: the template has no place for something in
// the conversation; the message says what.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "data/chat/conversation.h"

namespace tercio::data::chat {

// Bytes [begin, end) of a text.
struct TextRange {
  size_t begin = 0;
  size_t end = 0;
};

struct Rendered {
  std::string text;
  // What the assistant says in each of its turns: all that follows the text with which a template
  // asks for an answer, up to and with what ends the turn (<|im_end|>, </s>). Line breaks behind
  // that do not belong to it. Ascending.
  std::vector<TextRange> assistant;
};

struct RenderOptions {
  // The texts of the tokenizer's tokens for the beginning and the end of a text.
  std::string bos;
  std::string eos;
  bool generation_prompt = false;  // ends with what asks the assistant for its next turn
};

struct Template {
  std::string_view name;
  // The published model's tokens; a tokenizer with others has its own.
  std::string_view bos;
  std::string_view eos;
  // Texts that are tokens of their own in the model's vocabulary.
  absl::Span<const std::string_view> special;
  // What separates Alpaca's instruction from its input.
  std::string_view input_separator;
  absl::StatusOr<Rendered> (*render)(const Conversation&, const RenderOptions&);
};

// Null: there is none of that name.
const Template* FindTemplate(std::string_view name);

// A JSON value as transformers writes it: Python's json.dumps, no letter escaped that need not be;
// on one line, or indented by so many spaces.
std::string PythonJson(const Json& value, int indent = 0);

// A text without the white space at its ends, as Python's str.strip and Jinja's trim have it.
// REQUIRES: UTF-8.
std::string_view Strip(std::string_view text);

}  // namespace tercio::data::chat
