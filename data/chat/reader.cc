#include "data/chat/reader.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/utf8.h"

namespace tercio::data::chat {
namespace {

// The deepest nesting that is read; no schema of a tool comes near.
constexpr int kMostDepth = 64;
// The wrong member may hold a long text.
constexpr size_t kMostShown = 40;

struct FormatName {
  Format format;
  std::string_view name;
  std::string_view key;  // which only lines of this form have
};
constexpr FormatName kFormats[] = {
    {Format::kMessages, "messages", "messages"},
    {Format::kShareGpt, "sharegpt", "conversations"},
    {Format::kAlpaca, "alpaca", "instruction"},
    {Format::kPromptCompletion, "prompt_completion", "prompt"},
};

absl::Status Fault(const std::string& what) { return absl::InvalidArgumentError(what); }

std::string Shown(std::string_view text) {
  const std::string cut(text.substr(0, kMostShown));
  return absl::StrCat("'", ForDisplay(cut), text.size() > kMostShown ? "...'" : "'");
}

// Values are walked recursively later on.
bool IsNestedTooDeep(std::string_view line) {
  int depth = 0;
  bool in_text = false;
  for (size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (in_text) {
      if (c == '\\') ++i;
      if (c == '"') in_text = false;
    } else if (c == '"') {
      in_text = true;
    } else if (c == '{' || c == '[') {
      if (++depth > kMostDepth) return true;
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return false;
}

absl::StatusOr<Json> ParseJson(std::string_view text) {
  if (IsNestedTooDeep(text)) {
    return Fault(absl::StrCat("lists and objects are nested more than ", kMostDepth, " deep"));
  }
  try {
    return Json::parse(text.begin(), text.end());
  } catch (const Json::parse_error& error) {
    // The library's own text quotes the line, which may be long and no business of a log.
    return Fault(absl::StrCat("not valid JSON at byte ", error.byte));
  }
}

absl::StatusOr<Json> ParseObject(std::string_view line) {
  TERCIO_ASSIGN_OR_RETURN(Json json, ParseJson(line));
  if (!json.is_object()) return Fault("the line is no object");
  return json;
}

// A member, or null if it is missing.
const Json& At(const Json& object, const char* key) {
  static const Json& missing = *new Json();
  const auto found = object.find(key);
  return found == object.end() ? missing : *found;
}

absl::StatusOr<std::string> TextAt(const Json& object, const char* key, const std::string& place) {
  const Json& value = At(object, key);
  if (value.is_string()) return value.get<std::string>();
  return Fault(absl::StrCat(place, value.is_null() ? "has no '" : "has no text under '", key, "'"));
}

absl::StatusOr<std::string> OptionalText(const Json& object, const char* key,
                                         const std::string& place) {
  if (At(object, key).is_null()) return std::string();
  return TextAt(object, key, place);
}

// A text, or a list of parts that are texts.
absl::StatusOr<std::string> ContentOf(const Json& content, const std::string& place) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) return Fault(place + "has a content that is no text");
  std::string all;
  for (const Json& part : content) {
    if (!part.is_object() || At(part, "type") != "text" || !At(part, "text").is_string()) {
      return Fault(place + "has a part that is no text; images and sounds are not supported");
    }
    all += part["text"].get<std::string>();
  }
  return all;
}

absl::StatusOr<ToolCall> ReadToolCall(const Json& json, const std::string& place) {
  // The call itself may stand where a list of calls has {"function": ...}.
  const bool wrapped = json.is_object() && At(json, "function").is_object();
  const Json& function = wrapped ? json["function"] : json;
  if (!function.is_object() || !At(function, "name").is_string()) {
    return Fault(place + "has a tool call without the name of a function");
  }
  ToolCall call;
  if (wrapped && At(json, "id").is_string()) call.id = json["id"].get<std::string>();
  call.function = function;
  Json& arguments = call.function["arguments"];
  // OpenAI's interface gives the object as its text.
  if (arguments.is_string()) {
    absl::StatusOr<Json> parsed = ParseJson(arguments.get<std::string>());
    if (!parsed.ok() || !parsed->is_object()) {
      return Fault(place + "has a tool call whose arguments are no JSON object");
    }
    arguments = *std::move(parsed);
  } else if (arguments.is_null()) {
    arguments = Json::object();
  } else if (!arguments.is_object()) {
    return Fault(place + "has a tool call whose arguments are no JSON object");
  }
  return call;
}

absl::StatusOr<Role> RoleOf(std::string_view name, const std::string& place) {
  if (name == "developer") return Role::kSystem;  // OpenAI's newer name
  if (const std::optional<Role> role = RoleNamed(name)) return *role;
  return Fault(absl::StrCat(place, "has the role ", Shown(name),
                            "; expected system, user, assistant or tool"));
}

absl::StatusOr<Message> ReadMessage(const Json& json, size_t number) {
  const std::string place = absl::StrCat("message ", number, " ");
  if (!json.is_object()) return Fault(place + "is no object");
  Message message;
  TERCIO_ASSIGN_OR_RETURN(const std::string role, TextAt(json, "role", place));
  TERCIO_ASSIGN_OR_RETURN(message.role, RoleOf(role, place));
  const Json& calls = At(json, "tool_calls");
  if (!calls.is_null() && !calls.is_array())
    return Fault(place + "has tool_calls that are no list");
  for (const Json& call : calls) {
    if (message.role != Role::kAssistant)
      return Fault(place + "calls a tool, but is no assistant's");
    TERCIO_ASSIGN_OR_RETURN(ToolCall read, ReadToolCall(call, place));
    message.tool_calls.push_back(std::move(read));
  }
  const Json& content = At(json, "content");
  // Beside tool calls there need be no text.
  if (!content.is_null() || message.tool_calls.empty()) {
    if (content.is_null()) return Fault(place + "has no 'content'");
    TERCIO_ASSIGN_OR_RETURN(message.content, ContentOf(content, place));
  }
  TERCIO_ASSIGN_OR_RETURN(message.tool_call_id, OptionalText(json, "tool_call_id", place));
  return message;
}

absl::Status AppendMessages(const Json& list, std::vector<Message>* out) {
  for (const Json& json : list) {
    TERCIO_ASSIGN_OR_RETURN(Message message, ReadMessage(json, out->size() + 1));
    out->push_back(std::move(message));
  }
  return absl::OkStatus();
}

// A list, or its text, as ShareGPT's data sets often have it.
absl::Status ReadTools(const Json& object, Conversation* out) {
  Json tools = At(object, "tools");
  if (tools.is_string()) {
    if (tools.get_ref<const std::string&>().empty()) return absl::OkStatus();
    TERCIO_ASSIGN_OR_RETURN(tools, ParseJson(tools.get<std::string>()));
  }
  if (tools.is_null()) return absl::OkStatus();
  if (!tools.is_array()) return Fault("'tools' is no list");
  for (const Json& tool : tools) {
    const bool named = tool.is_object() && At(tool, "function").is_object() &&
                       At(tool["function"], "name").is_string();
    if (named) continue;
    return Fault(
        "'tools' has an entry without {\"type\": \"function\", \"function\": {\"name\": ...}}");
  }
  out->tools = std::move(tools);
  return absl::OkStatus();
}

absl::Status ListAt(const Json& object, const char* key) {
  if (At(object, key).is_array()) return absl::OkStatus();
  return Fault(absl::StrCat("the object has no list under '", key, "'"));
}

absl::StatusOr<Conversation> ReadMessages(const Json& line) {
  Conversation out;
  TERCIO_RETURN_IF_ERROR(ListAt(line, "messages"));
  TERCIO_RETURN_IF_ERROR(AppendMessages(line["messages"], &out.messages));
  TERCIO_RETURN_IF_ERROR(ReadTools(line, &out));
  return out;
}

// ---- ShareGPT ----

absl::StatusOr<Message> ReadShareGptMessage(const Json& json, size_t number) {
  const std::string place = absl::StrCat("message ", number, " ");
  if (!json.is_object()) return Fault(place + "is no object");
  Message message;
  TERCIO_ASSIGN_OR_RETURN(const std::string from, TextAt(json, "from", place));
  TERCIO_ASSIGN_OR_RETURN(message.content, TextAt(json, "value", place));
  if (from == "human" || from == "user") {
    message.role = Role::kUser;
  } else if (from == "gpt" || from == "assistant" || from == "model") {
    message.role = Role::kAssistant;
  } else if (from == "system") {
    message.role = Role::kSystem;
  } else if (from == "tool" || from == "observation") {
    message.role = Role::kTool;
  } else if (from == "function_call") {
    message.role = Role::kAssistant;
    TERCIO_ASSIGN_OR_RETURN(const Json call, ParseJson(message.content));
    TERCIO_ASSIGN_OR_RETURN(ToolCall read, ReadToolCall(call, place));
    message.tool_calls.push_back(std::move(read));
    message.content.clear();
  } else {
    return Fault(absl::StrCat(place, "is from ", Shown(from), "; expected human, gpt, system, ",
                              "observation or function_call"));
  }
  return message;
}

absl::Status AppendSystem(const Json& line, Conversation* out) {
  TERCIO_ASSIGN_OR_RETURN(std::string system, OptionalText(line, "system", "the object "));
  if (!system.empty()) out->messages.push_back({Role::kSystem, std::move(system), {}, ""});
  return absl::OkStatus();
}

absl::StatusOr<Conversation> ReadShareGpt(const Json& line) {
  Conversation out;
  TERCIO_RETURN_IF_ERROR(ListAt(line, "conversations"));
  TERCIO_RETURN_IF_ERROR(AppendSystem(line, &out));
  size_t number = 0;
  for (const Json& json : line["conversations"]) {
    TERCIO_ASSIGN_OR_RETURN(Message message, ReadShareGptMessage(json, ++number));
    out.messages.push_back(std::move(message));
  }
  if (number == 0) out.messages.clear();
  TERCIO_RETURN_IF_ERROR(ReadTools(line, &out));
  return out;
}

// ---- Alpaca ----

absl::Status AppendHistory(const Json& line, Conversation* out) {
  const Json& history = At(line, "history");
  if (history.is_null()) return absl::OkStatus();
  if (!history.is_array()) return Fault("'history' is no list");
  for (const Json& turn : history) {
    if (!turn.is_array() || turn.size() != 2 || !turn[0].is_string() || !turn[1].is_string()) {
      return Fault("'history' has an entry that is not [\"user's text\", \"assistant's text\"]");
    }
    out->messages.push_back({Role::kUser, turn[0].get<std::string>(), {}, ""});
    out->messages.push_back({Role::kAssistant, turn[1].get<std::string>(), {}, ""});
  }
  return absl::OkStatus();
}

absl::StatusOr<Conversation> ReadAlpaca(const Json& line, std::string_view input_separator) {
  const std::string place = "the object ";
  Conversation out;
  TERCIO_RETURN_IF_ERROR(AppendSystem(line, &out));
  TERCIO_RETURN_IF_ERROR(AppendHistory(line, &out));
  TERCIO_ASSIGN_OR_RETURN(std::string text, TextAt(line, "instruction", place));
  TERCIO_ASSIGN_OR_RETURN(const std::string input, OptionalText(line, "input", place));
  TERCIO_ASSIGN_OR_RETURN(std::string output, TextAt(line, "output", place));
  if (!input.empty()) absl::StrAppend(&text, std::string(input_separator), input);
  out.messages.push_back({Role::kUser, std::move(text), {}, ""});
  out.messages.push_back({Role::kAssistant, std::move(output), {}, ""});
  return out;
}

// ---- prompt and completion ----

absl::Status AppendSide(const Json& line, const char* key, Role role, Conversation* out) {
  if (At(line, key).is_array()) return AppendMessages(line[key], &out->messages);
  TERCIO_ASSIGN_OR_RETURN(std::string text, TextAt(line, key, "the object "));
  out->messages.push_back({role, std::move(text), {}, ""});
  return absl::OkStatus();
}

absl::StatusOr<Conversation> ReadPromptCompletion(const Json& line) {
  Conversation out;
  TERCIO_RETURN_IF_ERROR(AppendSide(line, "prompt", Role::kUser, &out));
  TERCIO_RETURN_IF_ERROR(AppendSide(line, "completion", Role::kAssistant, &out));
  TERCIO_RETURN_IF_ERROR(ReadTools(line, &out));
  return out;
}

// ---- answers that are compared ----

// Whether a list holds the prompt, too: an answer alone begins with the assistant.
bool IsWholeConversation(const Json& answer) {
  if (!answer.is_array() || answer.empty() || !answer[0].is_object()) return false;
  const Json& role = At(answer[0], "role");
  return role.is_string() && role != "assistant";
}

absl::Status CheckAnswer(const char* key, const Conversation& conversation, size_t prompt) {
  const std::vector<Message>& messages = conversation.messages;
  if (messages.size() <= prompt) {
    return Fault(absl::StrCat("'", key, "' has no answer behind the prompt"));
  }
  const std::string place = absl::StrCat("'", key, "': ");
  if (absl::Status order = CheckConversation(conversation); !order.ok()) {
    return Fault(place + std::string(order.message()));
  }
  if (messages[prompt].role == Role::kAssistant) return absl::OkStatus();
  return Fault(absl::StrCat(place, "message ", prompt + 1, " is ",
                            std::string(NameOf(messages[prompt].role)),
                            "'s; an answer begins with the assistant"));
}

absl::Status AppendAnswer(const Json& line, const char* key, Conversation* out) {
  absl::Status appended = AppendSide(line, key, Role::kAssistant, out);
  if (appended.ok() || !At(line, key).is_array()) return appended;
  return Fault(absl::StrCat("'", key, "': ", std::string(appended.message())));
}

// The messages with which both lists begin.
size_t SharedMessages(const Json& a, const Json& b) {
  size_t shared = 0;
  while (shared < a.size() && shared < b.size() && a[shared] == b[shared]) ++shared;
  return shared;
}

absl::StatusOr<Conversation> ReadPrompt(const Json& line) {
  Conversation prompt;
  TERCIO_RETURN_IF_ERROR(AppendSide(line, "prompt", Role::kUser, &prompt));
  TERCIO_RETURN_IF_ERROR(ReadTools(line, &prompt));
  return prompt;
}

absl::StatusOr<Conversation> ReadObject(const Json& line, Format format,
                                        std::string_view input_separator) {
  switch (format) {
    case Format::kMessages:
      return ReadMessages(line);
    case Format::kShareGpt:
      return ReadShareGpt(line);
    case Format::kAlpaca:
      return ReadAlpaca(line, input_separator);
    case Format::kPromptCompletion:
      return ReadPromptCompletion(line);
  }
  return Fault("unknown form");
}

}  // namespace

std::string_view NameOf(Format format) {
  for (const FormatName& each : kFormats) {
    if (each.format == format) return each.name;
  }
  return "";
}

absl::StatusOr<Format> FormatOfLine(std::string_view line) {
  TERCIO_ASSIGN_OR_RETURN(const Json json, ParseObject(line));
  for (const FormatName& each : kFormats) {
    if (json.contains(each.key)) return each.format;
  }
  return Fault(
      "the object has none of the keys messages (OpenAI), conversations (ShareGPT), instruction "
      "(Alpaca) and prompt (prompt_completion); docs/chat.md has the forms");
}

absl::StatusOr<Conversation> ReadConversation(std::string_view line, Format format,
                                              std::string_view input_separator) {
  TERCIO_ASSIGN_OR_RETURN(const Json json, ParseObject(line));
  TERCIO_ASSIGN_OR_RETURN(Conversation conversation, ReadObject(json, format, input_separator));
  TERCIO_RETURN_IF_ERROR(CheckConversation(conversation));
  return conversation;
}

absl::StatusOr<AnswerPair> ReadAnswerPair(std::string_view line) {
  TERCIO_ASSIGN_OR_RETURN(const Json json, ParseObject(line));
  for (const char* key : {"chosen", "rejected"}) {
    if (json.contains(key)) continue;
    return Fault(absl::StrCat("the object has no '", key, "'; a line is {\"prompt\": ..., ",
                              "\"chosen\": ..., \"rejected\": ...} (docs/preference.md)"));
  }
  const Json& chosen = json["chosen"];
  const Json& rejected = json["rejected"];
  if (chosen == rejected) return Fault("'chosen' and 'rejected' are the same answer");
  AnswerPair pair;
  if (IsWholeConversation(chosen) && IsWholeConversation(rejected)) {
    pair.prompt_messages = SharedMessages(chosen, rejected);
    TERCIO_RETURN_IF_ERROR(ReadTools(json, &pair.chosen));
  } else if (json.contains("prompt")) {
    TERCIO_ASSIGN_OR_RETURN(pair.chosen, ReadPrompt(json));
    pair.prompt_messages = pair.chosen.messages.size();
  } else {
    return Fault(
        "the object has no 'prompt', and 'chosen' and 'rejected' are not both lists of messages "
        "that begin with it");
  }
  pair.rejected = pair.chosen;
  TERCIO_RETURN_IF_ERROR(AppendAnswer(json, "chosen", &pair.chosen));
  TERCIO_RETURN_IF_ERROR(AppendAnswer(json, "rejected", &pair.rejected));
  TERCIO_RETURN_IF_ERROR(CheckAnswer("chosen", pair.chosen, pair.prompt_messages));
  TERCIO_RETURN_IF_ERROR(CheckAnswer("rejected", pair.rejected, pair.prompt_messages));
  return pair;
}

absl::StatusOr<LabelledAnswer> ReadLabelledAnswer(std::string_view line) {
  TERCIO_ASSIGN_OR_RETURN(const Json json, ParseObject(line));
  for (const char* key : {"prompt", "completion", "label"}) {
    if (json.contains(key)) continue;
    return Fault(absl::StrCat("the object has no '", key, "'; a line is {\"prompt\": ..., ",
                              "\"completion\": ..., \"label\": true} (docs/preference.md)"));
  }
  if (!json["label"].is_boolean()) return Fault("'label' is neither true nor false");
  LabelledAnswer out;
  out.desirable = json["label"].get<bool>();
  TERCIO_ASSIGN_OR_RETURN(out.conversation, ReadPrompt(json));
  out.prompt_messages = out.conversation.messages.size();
  TERCIO_RETURN_IF_ERROR(AppendAnswer(json, "completion", &out.conversation));
  TERCIO_RETURN_IF_ERROR(CheckAnswer("completion", out.conversation, out.prompt_messages));
  return out;
}

}  // namespace tercio::data::chat
