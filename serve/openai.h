// The messages of OpenAI's API for completions and chats: requests are read and checked, answers
// are written. What a request asks for and this server cannot do is refused with the name of the
// parameter, and never ignored.
//
// Pure; safe from any thread. Source: OpenAI's API reference, and the client library `openai`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "nlohmann/json.hpp"
#include "serve/chat_format.h"

namespace tercio::serve {

using Json = nlohmann::ordered_json;

struct ApiError {
  int status = 400;  // HTTP status
  std::string message;
  std::string type = "invalid_request_error";
  std::string parameter = "";  // empty: none
  std::string code = "";       // empty: none
};
std::string ErrorBody(const ApiError& error);

// Limits that keep a request from asking for much more than its body shows.
inline constexpr int kMostLogProbabilities = 20;
inline constexpr size_t kMostPrompts = 2048;
inline constexpr size_t kMostStopWords = 16;

struct PromptInput {
  std::string text;
  std::vector<int32_t> ids;  // instead of the text, if there are any
};

struct GenerationRequest {
  bool chat = false;
  std::string model;                  // empty: the only one
  std::vector<PromptInput> prompts;   // for a completion, at least one
  std::vector<ChatMessage> messages;  // for a chat, at least one
  std::optional<int64_t> max_tokens;
  double temperature = 1;
  double top_p = 1;
  int64_t top_k = 0;  // not OpenAI's; 0: all
  std::optional<uint64_t> seed;
  std::vector<std::string> stop;
  std::optional<int> log_probabilities;  // with so many alternatives
  bool echo = false;
  bool stream = false;
  bool stream_usage = false;
  bool ignore_eos = false;  // not OpenAI's: continues after the end of a text
};

std::variant<GenerationRequest, ApiError> ParseCompletion(const std::string& body);
std::variant<GenerationRequest, ApiError> ParseChat(const std::string& body);

// ---- answers ----

struct ShownToken {
  std::string text;  // any bytes
  std::optional<double> log_probability;
  std::vector<std::pair<std::string, double>> likeliest;
};

struct Choice {
  size_t index = 0;
  std::string text;  // since the last message of a stream, or all of it
  std::vector<ShownToken> tokens;
  std::string finish_reason;  // stop | length; empty: continues
  size_t offset = 0;          // characters of the choice before these tokens
};

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
};

struct AnswerHead {
  bool chat = false;
  std::string id;
  int64_t created = 0;  // seconds since 1970
  std::string model;
  bool log_probabilities = false;
};

std::string AnswerBody(const AnswerHead& head, const std::vector<Choice>& choices,
                       const Usage& usage);
// Events of a stream: "data: {...}\n\n". `first`: the first of this choice.
std::string ChunkEvent(const AnswerHead& head, const Choice& choice, bool first);
std::string UsageEvent(const AnswerHead& head, const Usage& usage);
std::string ErrorEvent(const ApiError& error);
inline constexpr std::string_view kLastEvent = "data: [DONE]\n\n";

// What requests name, and, of an adapter, the model beside which it is.
struct ServedModel {
  std::string name;
  std::string parent = "";  // empty: none
};
std::string ModelsBody(const std::vector<ServedModel>& models, int64_t created, int64_t context);
std::string ModelBody(const ServedModel& model, int64_t created, int64_t context);

// Code points, as clients in most languages count characters.
size_t CharactersOf(std::string_view text);

}  // namespace tercio::serve
