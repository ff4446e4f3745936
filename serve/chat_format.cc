#include "serve/chat_format.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace tercio::serve {
namespace {

// As the models of the Qwen family have it in their configurations.
class ChatMl : public ChatFormat {
 public:
  absl::StatusOr<std::string> Render(const std::vector<ChatMessage>& messages) const override {
    std::string text;
    for (const ChatMessage& message : messages) {
      absl::StrAppend(&text, "<|im_start|>", message.role, "\n", message.content, "<|im_end|>\n");
    }
    return text + "<|im_start|>assistant\n";
  }
  std::vector<std::string> stop_words() const override { return {"<|im_end|>"}; }
};

class PlainChat : public ChatFormat {
 public:
  absl::StatusOr<std::string> Render(const std::vector<ChatMessage>& messages) const override {
    std::string text;
    for (const ChatMessage& message : messages) {
      std::string role = message.role;
      role[0] = absl::ascii_toupper(static_cast<unsigned char>(role[0]));
      absl::StrAppend(&text, role, ": ", message.content, "\n");
    }
    return text + "Assistant:";
  }
  std::vector<std::string> stop_words() const override { return {"\nUser:"}; }
};

}  // namespace

absl::StatusOr<std::unique_ptr<ChatFormat>> ChatFormatNamed(const std::string& name) {
  if (name == "chatml") return std::make_unique<ChatMl>();
  if (name == "plain") return std::make_unique<PlainChat>();
  return absl::InvalidArgumentError(
      absl::StrCat("there is no chat template ", name, "; choose chatml or plain"));
}

}  // namespace tercio::serve
