// One line of a chat file: a JSON object of one of these forms, which are those of the data sets
// that people publish. Keys that are not named here are skipped.
//
//   messages            {"messages": [{"role": "user", "content": "..."}, ...], "tools": [...]}:
//   OpenAI's.
//                       Roles are system (or developer), user, assistant and tool. A content may be
//                       a list of {"type": "text", "text": "..."}; tool_calls of the assistant have
//                       {"id", "function": {"name", "arguments"}}, arguments as an object or as its
//                       text; a tool's answer may have tool_call_id
//   sharegpt            {"conversations": [{"from": "human", "value": "..."}, ...], "system":
//   "...",
//                       "tools": [...]}: human or user, gpt or assistant, system, tool or
//                       observation, and function_call, whose value is {"name": ..., "arguments":
//                       {...}}
//   alpaca              {"instruction": "...", "input": "...", "output": "...", "system": "...",
//                       "history": [["...", "..."], ...]}, all but instruction and output may be
//                       missing
//   prompt_completion   {"prompt": "...", "completion": "..."}, each a text or a list of messages
//
// Pure; safe from any thread. Errors: INVALID_ARGUMENT describing the fault of the line; the caller
// knows file and number.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "data/chat/conversation.h"

namespace tercio::data::chat {

enum class Format { kMessages, kShareGpt, kAlpaca, kPromptCompletion };

// "messages", ...
std::string_view NameOf(Format format);

// The form of a file by its first line.
absl::StatusOr<Format> FormatOfLine(std::string_view line);

// The conversation of a line, which is in order (CheckConversation). `input_separator` stands
// between Alpaca's instruction and input (Template::input_separator).
absl::StatusOr<Conversation> ReadConversation(std::string_view line, Format format,
                                              std::string_view input_separator);

// Two answers to a prompt.
struct AnswerPair {
  Conversation chosen;
  Conversation rejected;
  size_t prompt_messages = 0;  // with which both begin; the assistant follows
};

// {"prompt": ..., "chosen": ..., "rejected": ...}, each a text or a list of messages, and perhaps
// "tools". Lists of both answers that begin with the prompt are whole conversations, which share
// it; their line need not have a "prompt".
absl::StatusOr<AnswerPair> ReadAnswerPair(std::string_view line);

// An answer that is desirable or not.
struct LabelledAnswer {
  Conversation conversation;
  size_t prompt_messages = 0;
  bool desirable = false;
};

// {"prompt": ..., "completion": ..., "label": true}, prompt and completion as above.
absl::StatusOr<LabelledAnswer> ReadLabelledAnswer(std::string_view line);

}  // namespace tercio::data::chat
