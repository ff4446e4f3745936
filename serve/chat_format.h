// How the messages of a chat become the prompt of a model.
//
// Pure; safe from any thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tercio::serve {

struct ChatMessage {
  std::string role;  // system, user, assistant
  std::string content;
};

class ChatFormat {
 public:
  virtual ~ChatFormat() = default;
  // The prompt after which the model's own message follows. INVALID_ARGUMENT: an order of roles
  // that the format does not have.
  virtual absl::StatusOr<std::string> Render(const std::vector<ChatMessage>& messages) const = 0;
  // What ends the model's message, beside its end of text.
  virtual std::vector<std::string> stop_words() const = 0;
};

// chatml (<|im_start|>role ... <|im_end|>) or plain ("User: ...", for models that have seen no
// chats). INVALID_ARGUMENT with the names that there are.
absl::StatusOr<std::unique_ptr<ChatFormat>> ChatFormatNamed(const std::string& name);

}  // namespace tercio::serve
