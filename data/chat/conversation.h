// A conversation, as every form of chat data is read into it and every template writes it.
//
// Plain values.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "nlohmann/json.hpp"

namespace tercio::data::chat {

// Keys keep their order, which texts of templates show.
using Json = nlohmann::ordered_json;

enum class Role { kSystem, kUser, kAssistant, kTool };

// "system", ...
std::string_view NameOf(Role role);
std::optional<Role> RoleNamed(std::string_view name);

struct ToolCall {
  std::string id;  // may be empty
  Json function;   // {"name": ..., "arguments": {...}}
};

struct Message {
  Role role = Role::kUser;
  std::string content;               // may be empty beside tool calls
  std::vector<ToolCall> tool_calls;  // empty unless the assistant calls tools
  std::string tool_call_id;          // the call that a tool answers; may be empty
};

struct Conversation {
  std::vector<Message> messages;
  Json tools;  // a list of the functions that the assistant may call, or null
};

// INVALID_ARGUMENT: no messages; a system message elsewhere than at the beginning; a conversation
// that does not begin with the user, or in which one side speaks twice in a row; a tool's answer
// that follows no tool call; a message without text. Messages count from 1.
absl::Status CheckConversation(const Conversation& conversation);

}  // namespace tercio::data::chat
