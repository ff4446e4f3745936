#include "serve/chat_format.h"

#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "data/chat/conversation.h"
#include "data/chat/template.h"
#include "data/chat/template_names.h"
#include "data/chat/tokens.h"

namespace tercio::serve {
namespace {

namespace chat = data::chat;

// The conversation of the messages; as it is read for training, but that it ends with what is
// answered.
absl::StatusOr<chat::Conversation> ConversationOf(const std::vector<ChatMessage>& messages) {
  chat::Conversation conversation;
  for (const ChatMessage& message : messages) {
    const std::optional<chat::Role> role = chat::RoleNamed(message.role);
    if (!role.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat("there is no role ", message.role));
    }
    conversation.messages.push_back({*role, message.content, {}, ""});
  }
  TERCIO_RETURN_IF_ERROR(chat::CheckConversation(conversation));
  if (conversation.messages.back().role != chat::Role::kUser) {
    return absl::InvalidArgumentError("the last message must be the user's, for it is answered");
  }
  return conversation;
}

class TemplateChat : public ChatFormat {
 public:
  TemplateChat(const chat::Template& chat_template, const tokenizer::Tokenizer& tokenizer)
      : template_(chat_template),
        tokenizer_(tokenizer),
        options_(chat::OptionsFor(chat_template, tokenizer)) {}

  absl::StatusOr<std::vector<int32_t>> Prompt(
      const std::vector<ChatMessage>& messages) const override {
    TERCIO_ASSIGN_OR_RETURN(const chat::Conversation conversation, ConversationOf(messages));
    chat::RenderOptions options = options_;
    options.generation_prompt = true;
    TERCIO_ASSIGN_OR_RETURN(const chat::Rendered rendered, template_.render(conversation, options));
    TERCIO_ASSIGN_OR_RETURN(chat::ChatTokens tokens,
                            chat::Tokenize(rendered, chat::LossOn::kAll, tokenizer_));
    return std::move(tokens.ids);
  }

  // What the template writes behind an answer.
  std::vector<std::string> stop_words() const override {
    constexpr std::string_view kAnswer = "answer";
    const chat::Conversation turn = {{{chat::Role::kUser, "question", {}, ""},
                                      {chat::Role::kAssistant, std::string(kAnswer), {}, ""}},
                                     nullptr};
    const absl::StatusOr<chat::Rendered> rendered = template_.render(turn, options_);
    if (!rendered.ok() || rendered->assistant.empty()) return {};
    const chat::TextRange range = rendered->assistant.back();
    const std::string text = rendered->text.substr(range.begin, range.end - range.begin);
    const size_t at = text.find(kAnswer);
    const std::string end = at == std::string::npos ? "" : text.substr(at + kAnswer.size());
    return end.empty() ? std::vector<std::string>() : std::vector<std::string>{end};
  }

 private:
  const chat::Template& template_;
  const tokenizer::Tokenizer& tokenizer_;
  const chat::RenderOptions options_;
};

class PlainChat : public ChatFormat {
 public:
  explicit PlainChat(const tokenizer::Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  absl::StatusOr<std::vector<int32_t>> Prompt(
      const std::vector<ChatMessage>& messages) const override {
    std::string text;
    for (const ChatMessage& message : messages) {
      std::string role = message.role;
      role[0] = absl::ascii_toupper(static_cast<unsigned char>(role[0]));
      absl::StrAppend(&text, role, ": ", message.content, "\n");
    }
    return tokenizer_.Encode(text + "Assistant:");
  }
  std::vector<std::string> stop_words() const override { return {"\nUser:"}; }

 private:
  const tokenizer::Tokenizer& tokenizer_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ChatFormat>> ChatFormatNamed(const std::string& name,
                                                            const tokenizer::Tokenizer& tokenizer) {
  if (name == kPlainChat) return std::make_unique<PlainChat>(tokenizer);
  if (const chat::Template* found = chat::FindTemplate(name); found != nullptr) {
    return std::make_unique<TemplateChat>(*found, tokenizer);
  }
  std::string names;
  for (const std::string_view known : chat::TemplateNames())
    absl::StrAppend(&names, std::string(known), ", ");
  return absl::InvalidArgumentError(
      absl::StrCat("there is no chat template ", name, "; choose one of ", names, kPlainChat));
}

}  // namespace tercio::serve
