#include "data/chat/conversation.h"

#include "absl/strings/str_cat.h"

namespace tercio::data::chat {
namespace {

struct RoleName {
  Role role;
  std::string_view name;
};
constexpr RoleName kRoles[] = {
    {Role::kSystem, "system"},
    {Role::kUser, "user"},
    {Role::kAssistant, "assistant"},
    {Role::kTool, "tool"},
};

bool HasToolCalls(const Message& message) { return !message.tool_calls.empty(); }

// What may follow `last`, which is null at the beginning; empty: `next` may.
std::string WhyNotNext(const Message* last, const Message& next) {
  const auto follows = [&](const char* what) {
    return absl::StrCat("is ", std::string(NameOf(next.role)), "'s and follows ",
                        std::string(NameOf(last->role)), "'s; expected ", what);
  };
  if (next.role == Role::kSystem) {
    return last == nullptr ? "" : "is system's, which only the first message may be";
  }
  if (last == nullptr || last->role == Role::kSystem) {
    if (next.role == Role::kUser) return "";
    return absl::StrCat("is ", std::string(NameOf(next.role)),
                        "'s; a conversation begins with the user, or a system message before it");
  }
  if (next.role == Role::kTool) {
    const bool called = HasToolCalls(*last) || last->role == Role::kTool;
    return called ? "" : "is a tool's answer, but the message before it calls no tool";
  }
  if (HasToolCalls(*last)) return next.role == Role::kTool ? "" : follows("the tool's answer");
  if (last->role == Role::kUser || last->role == Role::kTool) {
    return next.role == Role::kAssistant ? "" : follows("the assistant's answer");
  }
  return next.role == Role::kUser ? "" : follows("the user's message");
}

}  // namespace

std::string_view NameOf(Role role) {
  for (const RoleName& each : kRoles) {
    if (each.role == role) return each.name;
  }
  return "";
}

std::optional<Role> RoleNamed(std::string_view name) {
  for (const RoleName& each : kRoles) {
    if (each.name == name) return each.role;
  }
  return std::nullopt;
}

absl::Status CheckConversation(const Conversation& conversation) {
  if (conversation.messages.empty()) {
    return absl::InvalidArgumentError("the conversation is empty");
  }
  const Message* last = nullptr;
  for (size_t i = 0; i < conversation.messages.size(); ++i) {
    const Message& message = conversation.messages[i];
    const auto fault = [&](const std::string& what) {
      return absl::InvalidArgumentError(absl::StrCat("message ", i + 1, " ", what));
    };
    if (const std::string why = WhyNotNext(last, message); !why.empty()) return fault(why);
    // A system message may be empty, which switches a template's own off.
    const bool needs_text = message.role == Role::kUser || message.role == Role::kAssistant;
    if (needs_text && message.content.empty() && !HasToolCalls(message)) {
      return fault(absl::StrCat("(", std::string(NameOf(message.role)), ") has no text"));
    }
    last = &message;
  }
  return absl::OkStatus();
}

}  // namespace tercio::data::chat
