// How the messages of a chat become the prompt of a model: by the templates that chats are trained
// with (data/chat/template.h), or plain.
//
// Immutable; safe from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tokenizer/tokenizer.h"

namespace tercio::serve {

struct ChatMessage {
  std::string role;  // system, user, assistant
  std::string content;
};

class ChatFormat {
 public:
  virtual ~ChatFormat() = default;
  // The ids of the prompt after which the model's own message follows. INVALID_ARGUMENT: an order
  // of roles that the format does not have.
  virtual absl::StatusOr<std::vector<int32_t>> Prompt(
      const std::vector<ChatMessage>& messages) const = 0;
  // What ends the model's message, beside its end of text.
  virtual std::vector<std::string> stop_words() const = 0;
};

// "User: ...", for models that have seen no chats.
inline constexpr char kPlainChat[] = "plain";

// kPlainChat, or the name of a template. INVALID_ARGUMENT with the names that there are.
// `tokenizer` must outlive it.
absl::StatusOr<std::unique_ptr<ChatFormat>> ChatFormatNamed(const std::string& name,
                                                            const tokenizer::Tokenizer& tokenizer);

}  // namespace tercio::serve
