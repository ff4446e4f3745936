#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/utf8.h"
#include "serve/openai.h"

namespace tercio::serve {
namespace {

// Bytes that are no UTF-8 become U+FFFD.
std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json OrNull(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

std::string EventOf(const Json& json) { return absl::StrCat("data: ", Dump(json), "\n\n"); }

// Tokens of incomplete characters are shown as OpenAI shows them: "bytes:\xe2\x82".
std::string TokenName(const std::string& text) {
  if (IsUtf8(text)) return text;
  std::string name = "bytes:";
  for (const char c : text) {
    absl::StrAppendFormat(&name, "\\x%02x", static_cast<unsigned char>(c));
  }
  return name;
}

Json BytesOf(const std::string& text) {
  Json bytes = Json::array();
  for (const char c : text) bytes.push_back(static_cast<unsigned char>(c));
  return bytes;
}

Json NumberOrNull(const std::optional<double>& number) {
  return number.has_value() ? Json(*number) : Json(nullptr);
}

// The form of /v1/completions: parallel lists.
Json CompletionLogProbabilities(const Choice& choice) {
  Json tokens = Json::array();
  Json values = Json::array();
  Json likeliest = Json::array();
  Json offsets = Json::array();
  size_t offset = choice.offset;
  for (const ShownToken& token : choice.tokens) {
    tokens.push_back(TokenName(token.text));
    values.push_back(NumberOrNull(token.log_probability));
    offsets.push_back(offset);
    offset += CharactersOf(token.text);
    if (!token.log_probability.has_value()) {
      likeliest.push_back(nullptr);
      continue;
    }
    Json table = Json::object();
    // The likelier one of tokens with the same text counts.
    for (const auto& [text, value] : token.likeliest) table.emplace(TokenName(text), value);
    table.emplace(TokenName(token.text), *token.log_probability);
    likeliest.push_back(std::move(table));
  }
  return {{"tokens", tokens},
          {"token_logprobs", values},
          {"top_logprobs", likeliest},
          {"text_offset", offsets}};
}

// The form of /v1/chat/completions: a list of objects.
Json ChatLogProbabilities(const Choice& choice) {
  Json content = Json::array();
  for (const ShownToken& token : choice.tokens) {
    Json top = Json::array();
    for (const auto& [text, value] : token.likeliest) {
      top.push_back({{"token", TokenName(text)}, {"logprob", value}, {"bytes", BytesOf(text)}});
    }
    content.push_back({{"token", TokenName(token.text)},
                       {"logprob", NumberOrNull(token.log_probability)},
                       {"bytes", BytesOf(token.text)},
                       {"top_logprobs", std::move(top)}});
  }
  return {{"content", content}};
}

Json LogProbabilitiesOf(const AnswerHead& head, const Choice& choice) {
  if (!head.log_probabilities) return nullptr;
  return head.chat ? ChatLogProbabilities(choice) : CompletionLogProbabilities(choice);
}

Json HeadOf(const AnswerHead& head, const char* object) {
  return {{"id", head.id}, {"object", object}, {"created", head.created}, {"model", head.model}};
}

Json UsageOf(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens}};
}

const char* ChunkName(const AnswerHead& head) {
  return head.chat ? "chat.completion.chunk" : "text_completion";
}

Json ModelOf(const ServedModel& model, int64_t created, int64_t context) {
  Json json = {{"id", model.name},
               {"object", "model"},
               {"created", created},
               {"owned_by", "tercio"},
               {"max_model_len", context}};
  if (!model.parent.empty()) json["parent"] = model.parent;
  return json;
}

Json ErrorOf(const ApiError& error) {
  return {{"error",
           {{"message", error.message},
            {"type", error.type},
            {"param", OrNull(error.parameter)},
            {"code", OrNull(error.code)}}}};
}

}  // namespace

std::string ErrorBody(const ApiError& error) { return Dump(ErrorOf(error)); }

std::string ErrorEvent(const ApiError& error) { return EventOf(ErrorOf(error)); }

std::string AnswerBody(const AnswerHead& head, const std::vector<Choice>& choices,
                       const Usage& usage) {
  Json json = HeadOf(head, head.chat ? "chat.completion" : "text_completion");
  Json list = Json::array();
  for (const Choice& choice : choices) {
    Json one = {{"index", choice.index}};
    if (head.chat) {
      one["message"] = {{"role", "assistant"}, {"content", choice.text}, {"refusal", nullptr}};
    } else {
      one["text"] = choice.text;
    }
    one["logprobs"] = LogProbabilitiesOf(head, choice);
    one["finish_reason"] = OrNull(choice.finish_reason);
    list.push_back(std::move(one));
  }
  json["choices"] = std::move(list);
  json["usage"] = UsageOf(usage);
  return Dump(json);
}

std::string ChunkEvent(const AnswerHead& head, const Choice& choice, bool first) {
  Json json = HeadOf(head, ChunkName(head));
  Json one = {{"index", choice.index}};
  if (head.chat) {
    Json delta = Json::object();
    if (first) delta["role"] = "assistant";
    if (first || !choice.text.empty()) delta["content"] = choice.text;
    one["delta"] = std::move(delta);
  } else {
    one["text"] = choice.text;
  }
  one["logprobs"] = choice.tokens.empty() ? Json(nullptr) : LogProbabilitiesOf(head, choice);
  one["finish_reason"] = OrNull(choice.finish_reason);
  json["choices"] = Json::array({std::move(one)});
  return EventOf(json);
}

std::string UsageEvent(const AnswerHead& head, const Usage& usage) {
  Json json = HeadOf(head, ChunkName(head));
  json["choices"] = Json::array();
  json["usage"] = UsageOf(usage);
  return EventOf(json);
}

std::string ModelsBody(const std::vector<ServedModel>& models, int64_t created, int64_t context) {
  Json list = Json::array();
  for (const ServedModel& model : models) list.push_back(ModelOf(model, created, context));
  return Dump({{"object", "list"}, {"data", std::move(list)}});
}

std::string ModelBody(const ServedModel& model, int64_t created, int64_t context) {
  return Dump(ModelOf(model, created, context));
}

size_t CharactersOf(std::string_view text) {
  size_t count = 0;
  for (size_t at = 0; at < text.size(); at += DecodeUtf8(text, at).length) ++count;
  return count;
}

}  // namespace tercio::serve
