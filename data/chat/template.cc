#include "data/chat/template.h"

#include "absl/strings/str_cat.h"

namespace tercio::data::chat {
namespace {

using Result = absl::StatusOr<Rendered>;

// Collects a text and notes what the assistant says in it.
class Writer {
 public:
  template <typename... Parts>
  Writer& Add(const Parts&... parts) {
    absl::StrAppend(&rendered_.text, AsView(parts)...);
    return *this;
  }
  Writer& BeginAssistant() {
    begin_ = rendered_.text.size();
    return *this;
  }
  Writer& EndAssistant() {
    rendered_.assistant.push_back({begin_, rendered_.text.size()});
    return *this;
  }
  Rendered Take() { return std::move(rendered_); }

 private:
  static absl::string_view AsView(std::string_view text) { return {text.data(), text.size()}; }

  Rendered rendered_;
  size_t begin_ = 0;
};

absl::Status NoPlaceFor(std::string_view name, std::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("the template ", std::string(name), " has no ", std::string(what)));
}

// What most templates do not have.
enum class Lacks { kNothing, kToolCalls, kTools };

absl::Status CheckTools(const Conversation& conversation, std::string_view name, Lacks lacks) {
  if (lacks == Lacks::kNothing) return absl::OkStatus();
  // Left out, they would be missing from what the model learns without a word.
  if (!conversation.tools.empty())
    return NoPlaceFor(name, "list of tools; use llama3.1, qwen or mistral");
  for (const Message& message : conversation.messages) {
    if (!message.tool_calls.empty())
      return NoPlaceFor(name, "tool calls; use llama3.1, qwen or mistral");
    if (message.role == Role::kTool && lacks == Lacks::kTools) {
      return NoPlaceFor(name, "answers of tools; use llama3.1, qwen or mistral");
    }
  }
  return absl::OkStatus();
}

const Message* SystemOf(const Conversation& conversation) {
  const Message& first = conversation.messages.front();
  return first.role == Role::kSystem ? &first : nullptr;
}

absl::Span<const Message> WithoutSystem(const Conversation& conversation) {
  return absl::MakeConstSpan(conversation.messages)
      .subspan(SystemOf(conversation) != nullptr ? 1 : 0);
}

// ---- <|im_start|> ----

Result Chatml(const Conversation& conversation, const RenderOptions& options) {
  if (absl::Status status = CheckTools(conversation, "chatml", Lacks::kToolCalls); !status.ok()) {
    return status;
  }
  Writer out;
  for (const Message& message : conversation.messages) {
    out.Add("<|im_start|>", NameOf(message.role), "\n").BeginAssistant();
    out.Add(message.content, "<|im_end|>");
    if (message.role == Role::kAssistant) out.EndAssistant();
    out.Add("\n");
  }
  if (options.generation_prompt) out.Add("<|im_start|>assistant\n");
  return out.Take();
}

constexpr std::string_view kQwenSystem =
    "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.";

void QwenSystem(const Conversation& conversation, Writer& out) {
  const Message* const system = SystemOf(conversation);
  out.Add("<|im_start|>system\n",
          system != nullptr ? std::string_view(system->content) : kQwenSystem);
  if (!conversation.tools.empty()) {
    out.Add("\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n",
            "You are provided with function signatures within <tools></tools> XML tags:\n<tools>");
    for (const Json& tool : conversation.tools) out.Add("\n", PythonJson(tool));
    out.Add("\n</tools>\n\nFor each function call, return a json object with function name and ",
            "arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n",
            "{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call>");
  }
  out.Add("<|im_end|>\n");
}

void QwenAssistant(const Message& message, Writer& out) {
  out.Add("<|im_start|>assistant\n").BeginAssistant().Add(message.content);
  for (size_t i = 0; i < message.tool_calls.size(); ++i) {
    const Json& function = message.tool_calls[i].function;
    out.Add(i == 0 && message.content.empty() ? "" : "\n", "<tool_call>\n{\"name\": \"",
            function["name"].get_ref<const std::string&>(),
            "\", \"arguments\": ", PythonJson(function["arguments"]), "}\n</tool_call>");
  }
  out.Add("<|im_end|>").EndAssistant().Add("\n");
}

Result Qwen(const Conversation& conversation, const RenderOptions& options) {
  Writer out;
  QwenSystem(conversation, out);
  const absl::Span<const Message> messages = WithoutSystem(conversation);
  for (size_t i = 0; i < messages.size(); ++i) {
    const Message& message = messages[i];
    switch (message.role) {
      case Role::kSystem:  // was the first message
        break;
      case Role::kUser:
        out.Add("<|im_start|>user\n", message.content, "<|im_end|>\n");
        break;
      case Role::kAssistant:
        QwenAssistant(message, out);
        break;
      case Role::kTool:
        // Answers of several tools are one turn of the user.
        if (i == 0 || messages[i - 1].role != Role::kTool) out.Add("<|im_start|>user");
        out.Add("\n<tool_response>\n", message.content, "\n</tool_response>");
        if (i + 1 == messages.size() || messages[i + 1].role != Role::kTool) {
          out.Add("<|im_end|>\n");
        }
        break;
    }
  }
  if (options.generation_prompt) out.Add("<|im_start|>assistant\n");
  return out.Take();
}

// ---- [INST] ----

Result Llama2(const Conversation& conversation, const RenderOptions& options) {
  if (absl::Status status = CheckTools(conversation, "llama2", Lacks::kTools); !status.ok()) {
    return status;
  }
  Writer out;
  const Message* system = SystemOf(conversation);
  for (const Message& message : WithoutSystem(conversation)) {
    if (message.role == Role::kAssistant) {
      out.BeginAssistant().Add(" ", Strip(message.content), " ", options.eos).EndAssistant();
      continue;
    }
    std::string content = message.content;
    if (system != nullptr) {
      content = absl::StrCat("<<SYS>>\n", system->content, "\n<</SYS>>\n\n", content);
    }
    system = nullptr;
    out.Add(options.bos, "[INST] ", Strip(content), " [/INST]");
  }
  return out.Take();
}

absl::Status CheckMistralId(const std::string& id) {
  if (id.size() == 9) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the template mistral needs ids of tool calls of 9 letters and digits; '", id,
                   "' has ", id.size()));
}

void MistralTools(const Json& tools, Writer& out) {
  out.Add("[AVAILABLE_TOOLS] [");
  for (size_t i = 0; i < tools.size(); ++i) {
    out.Add(i > 0 ? ", " : "", "{\"type\": \"function\", \"function\": {");
    std::string members;
    for (const auto& [key, value] : tools[i]["function"].items()) {
      if (key == "return") continue;
      absl::StrAppend(&members, members.empty() ? "\"" : ", \"", key, "\": ",
                      value.is_string() ? absl::StrCat("\"", value.get<std::string>(), "\"")
                                        : PythonJson(value));
    }
    out.Add(members, "}}");
  }
  out.Add("][/AVAILABLE_TOOLS]");
}

absl::Status MistralCalls(const Message& message, const RenderOptions& options, Writer& out) {
  // The text would be left out without a word.
  if (!message.content.empty()) return NoPlaceFor("mistral", "text beside tool calls");
  out.BeginAssistant().Add("[TOOL_CALLS] [");
  for (size_t i = 0; i < message.tool_calls.size(); ++i) {
    const ToolCall& call = message.tool_calls[i];
    if (absl::Status status = CheckMistralId(call.id); !status.ok()) return status;
    std::string function = PythonJson(call.function);
    function.pop_back();  // the id stands behind the function's own members
    out.Add(i > 0 ? ", " : "", function, ", \"id\": \"", call.id, "\"}");
  }
  out.Add("]", options.eos).EndAssistant();
  return absl::OkStatus();
}

// The template writes the system message before the last user's message, if nothing follows that.
absl::Status CheckMistralSystem(const Conversation& conversation) {
  if (SystemOf(conversation) == nullptr) return absl::OkStatus();
  if (conversation.messages.back().role == Role::kUser) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "the template mistral leaves a system message out of a conversation that ends with the "
      "assistant; put its text into the user's first message");
}

// Where tools are listed: at each user's message that equals the last one.
bool IsLastOfUser(const Message& message, absl::Span<const Message> messages) {
  for (auto last = messages.rbegin(); last != messages.rend(); ++last) {
    if (last->role == Role::kUser) return last->content == message.content;
  }
  return false;
}

Result Mistral(const Conversation& conversation, const RenderOptions& options) {
  if (absl::Status status = CheckMistralSystem(conversation); !status.ok()) return status;
  Writer out;
  out.Add(options.bos);
  const Message* const system = SystemOf(conversation);
  const absl::Span<const Message> messages = WithoutSystem(conversation);
  for (const Message& message : messages) {
    switch (message.role) {
      case Role::kSystem:  // was the first message
        break;
      case Role::kUser:
        if (!conversation.tools.empty() && IsLastOfUser(message, messages)) {
          MistralTools(conversation.tools, out);
        }
        out.Add("[INST] ");
        if (system != nullptr && &message == &messages.back()) out.Add(system->content, "\n\n");
        out.Add(message.content, "[/INST]");
        break;
      case Role::kAssistant:
        if (message.tool_calls.empty()) {
          out.BeginAssistant().Add(" ", Strip(message.content), options.eos).EndAssistant();
        } else if (absl::Status status = MistralCalls(message, options, out); !status.ok()) {
          return status;
        }
        break;
      case Role::kTool:
        if (absl::Status status = CheckMistralId(message.tool_call_id); !status.ok()) {
          return status;
        }
        out.Add("[TOOL_RESULTS] {\"content\": ", message.content, ", \"call_id\": \"",
                message.tool_call_id, "\"}[/TOOL_RESULTS]");
        break;
    }
  }
  return out.Take();
}

// ---- roles as words ----

constexpr std::string_view kVicunaSystem =
    "A chat between a curious user and an artificial intelligence assistant. The assistant gives "
    "helpful, detailed, and polite answers to the user's questions.";

Result Vicuna(const Conversation& conversation, const RenderOptions& options) {
  if (absl::Status status = CheckTools(conversation, "vicuna", Lacks::kTools); !status.ok()) {
    return status;
  }
  const Message* const system = SystemOf(conversation);
  Writer out;
  out.Add(options.bos, system != nullptr ? std::string_view(system->content) : kVicunaSystem, " ");
  for (const Message& message : WithoutSystem(conversation)) {
    if (message.role == Role::kUser) {
      out.Add("USER: ", message.content, " ");
    } else {
      out.Add("ASSISTANT:").BeginAssistant();
      out.Add(" ", message.content, options.eos).EndAssistant();
    }
  }
  if (options.generation_prompt) out.Add("ASSISTANT:");
  return out.Take();
}

Result Alpaca(const Conversation& conversation, const RenderOptions& options) {
  if (absl::Status status = CheckTools(conversation, "alpaca", Lacks::kTools); !status.ok()) {
    return status;
  }
  Writer out;
  out.Add(options.bos);
  for (const Message& message : conversation.messages) {
    if (&message != &conversation.messages.front()) out.Add("\n\n");
    if (message.role == Role::kSystem) {
      out.Add(message.content);
    } else if (message.role == Role::kUser) {
      out.Add("### Instruction:\n", message.content);
    } else {
      out.Add("### Response:\n").BeginAssistant();
      out.Add(message.content, options.eos).EndAssistant();
    }
  }
  if (options.generation_prompt) out.Add("\n\n### Response:\n");
  return out.Take();
}

// ---- roles as special tokens ----

Result Llama3(const Conversation& conversation, const RenderOptions& options) {
  if (absl::Status status = CheckTools(conversation, "llama3", Lacks::kToolCalls); !status.ok()) {
    return status;
  }
  Writer out;
  out.Add(options.bos);
  for (const Message& message : conversation.messages) {
    out.Add("<|start_header_id|>", NameOf(message.role), "<|end_header_id|>\n\n").BeginAssistant();
    out.Add(Strip(message.content), "<|eot_id|>");
    if (message.role == Role::kAssistant) out.EndAssistant();
  }
  if (options.generation_prompt) out.Add("<|start_header_id|>assistant<|end_header_id|>\n\n");
  return out.Take();
}

constexpr std::string_view kHeader = "<|start_header_id|>";
constexpr std::string_view kHeaderEnd = "<|end_header_id|>\n\n";
constexpr std::string_view kEndOfTurn = "<|eot_id|>";

// The user's first message lists the tools.
void Llama31Tools(const Json& tools, const Message& user, Writer& out) {
  out.Add(kHeader, "user", kHeaderEnd,
          "Given the following functions, please respond with a JSON for a function call ",
          "with its proper arguments that best answers the given prompt.\n\n",
          "Respond in the format {\"name\": function name, \"parameters\": dictionary of argument ",
          "name and its value}.Do not use variables.\n\n");
  for (const Json& tool : tools) out.Add(PythonJson(tool, 4), "\n\n");
  out.Add(Strip(user.content), kEndOfTurn);
}

absl::Status Llama31Call(const Message& message, Writer& out) {
  if (message.tool_calls.size() > 1) {
    return NoPlaceFor("llama3.1", "second tool call in a turn");
  }
  // The text would be left out without a word.
  if (!message.content.empty()) return NoPlaceFor("llama3.1", "text beside a tool call");
  const Json& function = message.tool_calls.front().function;
  out.Add(kHeader, "assistant", kHeaderEnd).BeginAssistant();
  out.Add("{\"name\": \"", function["name"].get_ref<const std::string&>(),
          "\", \"parameters\": ", PythonJson(function["arguments"]), "}", kEndOfTurn);
  out.EndAssistant();
  return absl::OkStatus();
}

Result Llama31(const Conversation& conversation, const RenderOptions& options) {
  const Message* const system = SystemOf(conversation);
  const bool tools = !conversation.tools.is_null();
  Writer out;
  out.Add(options.bos, kHeader, "system", kHeaderEnd, tools ? "Environment: ipython\n" : "");
  // The template's own date: today's would make every run another one.
  out.Add("Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n",
          system != nullptr ? Strip(system->content) : "", kEndOfTurn);
  for (const Message& message : WithoutSystem(conversation)) {
    if (!message.tool_calls.empty()) {
      if (absl::Status status = Llama31Call(message, out); !status.ok()) return status;
    } else if (message.role == Role::kTool) {
      out.Add(kHeader, "ipython", kHeaderEnd, PythonJson(message.content), kEndOfTurn);
    } else if (tools && &message == WithoutSystem(conversation).data()) {
      Llama31Tools(conversation.tools, message, out);
    } else {
      out.Add(kHeader, NameOf(message.role), kHeaderEnd).BeginAssistant();
      out.Add(Strip(message.content), kEndOfTurn);
      if (message.role == Role::kAssistant) out.EndAssistant();
    }
  }
  if (options.generation_prompt) out.Add(kHeader, "assistant", kHeaderEnd);
  return out.Take();
}

Result Zephyr(const Conversation& conversation, const RenderOptions& options) {
  if (absl::Status status = CheckTools(conversation, "zephyr", Lacks::kTools); !status.ok()) {
    return status;
  }
  Writer out;
  for (const Message& message : conversation.messages) {
    out.Add("<|", NameOf(message.role), "|>\n").BeginAssistant();
    out.Add(message.content, options.eos);
    if (message.role == Role::kAssistant) out.EndAssistant();
    out.Add("\n");
  }
  if (options.generation_prompt) out.Add("<|assistant|>\n");
  return out.Take();
}

Result Gemma(const Conversation& conversation, const RenderOptions& options) {
  if (absl::Status status = CheckTools(conversation, "gemma", Lacks::kTools); !status.ok()) {
    return status;
  }
  if (SystemOf(conversation) != nullptr) {
    return NoPlaceFor("gemma", "system message; put its text into the user's first message");
  }
  Writer out;
  out.Add(options.bos);
  for (const Message& message : conversation.messages) {
    const bool assistant = message.role == Role::kAssistant;
    out.Add("<start_of_turn>", assistant ? "model" : "user", "\n").BeginAssistant();
    out.Add(Strip(message.content), "<end_of_turn>");
    if (assistant) out.EndAssistant();
    out.Add("\n");
  }
  if (options.generation_prompt) out.Add("<start_of_turn>model\n");
  return out.Take();
}

Result Phi3(const Conversation& conversation, const RenderOptions& options) {
  if (absl::Status status = CheckTools(conversation, "phi3", Lacks::kTools); !status.ok()) {
    return status;
  }
  Writer out;
  for (const Message& message : conversation.messages) {
    out.Add("<|", NameOf(message.role), "|>\n").BeginAssistant();
    out.Add(message.content, "<|end|>");
    if (message.role == Role::kAssistant) out.EndAssistant();
    out.Add("\n");
  }
  if (options.generation_prompt) {
    out.Add("<|assistant|>\n");
  } else {
    out.BeginAssistant().Add(options.eos);
    // The end of the text follows the assistant's last turn, and belongs to it.
    if (conversation.messages.back().role == Role::kAssistant) out.EndAssistant();
  }
  return out.Take();
}

constexpr std::string_view kChatmlTokens[] = {"<|im_start|>", "<|im_end|>"};
constexpr std::string_view kLlama3Tokens[] = {"<|start_header_id|>", "<|end_header_id|>",
                                              "<|eot_id|>"};
constexpr std::string_view kGemmaTokens[] = {"<start_of_turn>", "<end_of_turn>"};
constexpr std::string_view kPhi3Tokens[] = {"<|system|>", "<|user|>", "<|assistant|>", "<|end|>"};
constexpr std::string_view kMistralTokens[] = {"[INST]", "[/INST]"};
constexpr std::string_view kBlankLine = "\n\n";

constexpr Template kTemplates[] = {
    {"chatml", "", "<|im_end|>", kChatmlTokens, kBlankLine, Chatml},
    {"llama2", "<s>", "</s>", {}, kBlankLine, Llama2},
    {"llama3", "<|begin_of_text|>", "<|eot_id|>", kLlama3Tokens, kBlankLine, Llama3},
    {"llama3.1", "<|begin_of_text|>", "<|eot_id|>", kLlama3Tokens, kBlankLine, Llama31},
    {"vicuna", "<s>", "</s>", {}, kBlankLine, Vicuna},
    {"alpaca", "<s>", "</s>", {}, "\n\n### Input:\n", Alpaca},
    {"zephyr", "<s>", "</s>", {}, kBlankLine, Zephyr},
    {"gemma", "<bos>", "<eos>", kGemmaTokens, kBlankLine, Gemma},
    {"phi3", "<s>", "<|endoftext|>", kPhi3Tokens, kBlankLine, Phi3},
    {"qwen", "", "<|im_end|>", kChatmlTokens, kBlankLine, Qwen},
    {"mistral", "<s>", "</s>", kMistralTokens, kBlankLine, Mistral},
};

}  // namespace

const Template* FindTemplate(std::string_view name) {
  for (const Template& each : kTemplates) {
    if (each.name == name) return &each;
  }
  return nullptr;
}

}  // namespace tercio::data::chat
