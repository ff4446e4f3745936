#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "absl/strings/str_cat.h"
#include "serve/openai.h"

namespace tercio::serve {
namespace {

constexpr int64_t kMostTokens = int64_t{1} << 24;

// Reads parameters one by one, and remembers the first fault.
class ParameterReader {
 public:
  explicit ParameterReader(const Json& json) : json_(json) {}

  const std::optional<ApiError>& error() const { return error_; }

  void Fail(const std::string& name, std::string message) {
    if (!error_.has_value()) error_ = {.message = std::move(message), .parameter = name};
  }

  // Null if it is missing or null.
  const Json* Find(const std::string& name) {
    known_.insert(name);
    const auto found = json_.find(name);
    return found == json_.end() || found->is_null() ? nullptr : &*found;
  }

  template <typename Number>
  void ReadNumber(const std::string& name, double least, double most, Number* out) {
    const Json* value = Find(name);
    if (value == nullptr) return;
    constexpr bool kWhole = std::is_integral_v<Number>;
    const bool fits = kWhole ? value->is_number_integer() : value->is_number();
    const double number = fits ? value->get<double>() : 0;
    if (!fits || !(number >= least && number <= most)) {
      return Fail(name, absl::StrCat(name, " must be ", kWhole ? "a whole number" : "a number",
                                     " from ", least, " to ", most));
    }
    *out = value->get<Number>();
  }

  template <typename Number>
  void ReadNumber(const std::string& name, double least, double most, std::optional<Number>* out) {
    if (Find(name) == nullptr) return;
    Number number = 0;
    ReadNumber(name, least, most, &number);
    *out = number;
  }

  void ReadBool(const std::string& name, bool* out) {
    const Json* value = Find(name);
    if (value == nullptr) return;
    if (!value->is_boolean()) return Fail(name, absl::StrCat(name, " must be true or false"));
    *out = value->get<bool>();
  }

  void ReadText(const std::string& name, std::string* out) {
    const Json* value = Find(name);
    if (value == nullptr) return;
    if (!value->is_string()) return Fail(name, absl::StrCat(name, " must be a string"));
    *out = value->get<std::string>();
  }

  void ReadSeed(std::optional<uint64_t>* seed) {
    const Json* value = Find("seed");
    if (value == nullptr) return;
    if (!value->is_number_integer()) return Fail("seed", "seed must be a whole number");
    // A negative seed is as good as any other.
    *seed = value->is_number_unsigned() ? value->get<uint64_t>()
                                        : static_cast<uint64_t>(value->get<int64_t>());
  }

  void ReadStop(std::vector<std::string>* stop) {
    const Json* value = Find("stop");
    if (value == nullptr) return;
    const Json words = value->is_array() ? *value : Json::array({*value});
    for (const Json& word : words) {
      if (!word.is_string() || word.get<std::string>().empty()) {
        return Fail("stop", "stop must be a string or a list of strings, none of them empty");
      }
      stop->push_back(word.get<std::string>());
    }
    if (stop->size() > kMostStopWords) {
      Fail("stop", absl::StrCat("stop has ", stop->size(), " strings, at most ", kMostStopWords));
    }
  }

  // A parameter that this server supports with one value only.
  void Only(const std::string& name, const Json& supported) {
    const Json* value = Find(name);
    if (value == nullptr || *value == supported) return;
    Fail(name, absl::StrCat(name, " is not supported; leave it out, or send ", supported.dump()));
  }

  void Ignore(const std::string& name) { known_.insert(name); }

  void RefuseOthers() {
    for (const auto& [name, unused] : json_.items()) {
      if (!known_.contains(name)) {
        Fail(name, absl::StrCat("unrecognized parameter ", name, "; leave it out"));
      }
    }
  }

 private:
  const Json& json_;
  std::set<std::string> known_;
  std::optional<ApiError> error_;
};

std::variant<Json, ApiError> ObjectOf(const std::string& body) {
  Json json = Json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (json.is_object()) return json;
  return ApiError{.message = json.is_discarded() ? "the body is not JSON"
                                                 : "the body is not a JSON object"};
}

void ReadCommon(ParameterReader& reader, GenerationRequest* request) {
  reader.ReadText("model", &request->model);
  reader.ReadNumber("max_tokens", 0, kMostTokens, &request->max_tokens);
  reader.ReadNumber("temperature", 0, 100, &request->temperature);
  reader.ReadNumber("top_p", 0, 1, &request->top_p);
  reader.ReadNumber("top_k", 0, kMostTokens, &request->top_k);
  reader.ReadSeed(&request->seed);
  reader.ReadStop(&request->stop);
  reader.ReadBool("stream", &request->stream);
  reader.ReadBool("ignore_eos", &request->ignore_eos);
  const Json* options = reader.Find("stream_options");
  if (options != nullptr && request->stream && options->is_object()) {
    request->stream_usage = options->value("include_usage", Json(false)) == Json(true);
  } else if (options != nullptr) {
    reader.Fail("stream_options", "stream_options is an object, for stream: true only");
  }
  reader.Only("n", 1);
  reader.Only("presence_penalty", 0);
  reader.Only("frequency_penalty", 0);
  reader.Only("logit_bias", Json::object());
  // These change nothing about an answer.
  for (const char* name : {"user", "metadata", "store", "service_tier"}) reader.Ignore(name);
}

// A list of ids, all numbers; false: it is none.
bool ReadIds(const Json& json, std::vector<int32_t>* ids) {
  for (const Json& id : json) {
    const bool fits =
        id.is_number_integer() && id >= 0 && id <= std::numeric_limits<int32_t>::max();
    if (!fits) return false;
    ids->push_back(id.get<int32_t>());
  }
  return !ids->empty();
}

bool ReadPrompt(const Json& json, GenerationRequest* request) {
  PromptInput prompt;
  if (json.is_string()) {
    prompt.text = json.get<std::string>();
  } else if (!json.is_array() || !ReadIds(json, &prompt.ids)) {
    return false;
  }
  request->prompts.push_back(std::move(prompt));
  return true;
}

void ReadPrompts(ParameterReader& reader, GenerationRequest* request) {
  const Json* value = reader.Find("prompt");
  if (value == nullptr) return reader.Fail("prompt", "prompt is missing");
  const bool several = value->is_array() && !value->empty() && !value->front().is_number();
  if (several && value->size() > kMostPrompts) {
    return reader.Fail("prompt", absl::StrCat("prompt has ", value->size(), " texts, at most ",
                                              kMostPrompts, " in one request"));
  }
  const bool read = several ? std::all_of(value->begin(), value->end(),
                                          [&](const Json& one) { return ReadPrompt(one, request); })
                            : ReadPrompt(*value, request);
  if (!read) {
    reader.Fail("prompt",
                "prompt must be a string, a list of token ids, or a list of either, none empty");
  }
}

// The text of a message: a string, or parts of type text.
bool ReadContent(const Json& content, std::string* text) {
  if (content.is_string()) {
    *text = content.get<std::string>();
    return true;
  }
  if (!content.is_array()) return false;
  for (const Json& part : content) {
    if (!part.is_object() || part.value("type", Json()) != Json("text") || !part.contains("text") ||
        !part["text"].is_string()) {
      return false;
    }
    *text += part["text"].get<std::string>();
  }
  return true;
}

void ReadMessages(ParameterReader& reader, GenerationRequest* request) {
  const Json* value = reader.Find("messages");
  if (value == nullptr || !value->is_array() || value->empty()) {
    return reader.Fail("messages", "messages must be a list with at least one message");
  }
  for (size_t i = 0; i < value->size(); ++i) {
    const Json& message = (*value)[i];
    const std::string name = absl::StrCat("messages[", i, "]");
    ChatMessage read;
    if (!message.is_object() || !message.contains("role") || !message["role"].is_string()) {
      return reader.Fail(name + ".role", absl::StrCat(name, ".role must be a string"));
    }
    read.role = message["role"].get<std::string>();
    // The newer name of the same role.
    if (read.role == "developer") read.role = "system";
    if (read.role != "system" && read.role != "user" && read.role != "assistant") {
      return reader.Fail(name + ".role", absl::StrCat(name,
                                                      ".role must be system, user or "
                                                      "assistant"));
    }
    if (!message.contains("content") || !ReadContent(message["content"], &read.content)) {
      return reader.Fail(name + ".content", absl::StrCat(name,
                                                         ".content must be a string, or a "
                                                         "list of parts of type text"));
    }
    request->messages.push_back(std::move(read));
  }
}

std::variant<GenerationRequest, ApiError> Checked(ParameterReader& reader,
                                                  GenerationRequest request) {
  reader.RefuseOthers();
  if (reader.error().has_value()) return *reader.error();
  return request;
}

}  // namespace

std::variant<GenerationRequest, ApiError> ParseCompletion(const std::string& body) {
  const std::variant<Json, ApiError> json = ObjectOf(body);
  if (const auto* error = std::get_if<ApiError>(&json)) return *error;
  ParameterReader reader(std::get<Json>(json));
  GenerationRequest request;
  ReadPrompts(reader, &request);
  ReadCommon(reader, &request);
  reader.ReadNumber("logprobs", 0, kMostLogProbabilities, &request.log_probabilities);
  reader.ReadBool("echo", &request.echo);
  reader.Only("best_of", 1);
  reader.Only("suffix", "");
  if (request.echo && request.stream) {
    reader.Fail("echo", "echo is not supported together with stream; leave one out");
  }
  return Checked(reader, std::move(request));
}

std::variant<GenerationRequest, ApiError> ParseChat(const std::string& body) {
  const std::variant<Json, ApiError> json = ObjectOf(body);
  if (const auto* error = std::get_if<ApiError>(&json)) return *error;
  ParameterReader reader(std::get<Json>(json));
  GenerationRequest request;
  request.chat = true;
  ReadMessages(reader, &request);
  ReadCommon(reader, &request);
  reader.ReadNumber("max_completion_tokens", 1, kMostTokens, &request.max_tokens);
  bool scores = false;
  reader.ReadBool("logprobs", &scores);
  std::optional<int> alternatives;
  reader.ReadNumber("top_logprobs", 0, kMostLogProbabilities, &alternatives);
  if (alternatives.has_value() && !scores) {
    reader.Fail("top_logprobs", "top_logprobs needs logprobs: true");
  }
  if (scores) request.log_probabilities = alternatives.value_or(0);
  reader.Only("tools", Json::array());
  reader.Only("tool_choice", "none");
  reader.Only("response_format", Json{{"type", "text"}});
  reader.Only("modalities", Json::array({"text"}));
  reader.Ignore("parallel_tool_calls");
  return Checked(reader, std::move(request));
}

}  // namespace tercio::serve
