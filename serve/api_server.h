// Answers the requests of OpenAI's clients with a model: checks keys and requests, makes texts of
// them, and makes answers of what the texts become.
//
// Threads: that of HttpServer::Run.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/metrics/metrics_page.h"
#include "serve/api_keys.h"
#include "serve/chat_format.h"
#include "serve/http_server.h"
#include "serve/model_thread.h"
#include "serve/openai.h"
#include "serve/reloaded.h"
#include "tokenizer/tokenizer.h"

namespace tercio::serve {

// What is served, and how.
struct Service {
  std::string model;  // its name in requests
  // Names of the adapters beside it, in the order of inference::TextOptions::adapter.
  std::vector<std::string> adapters;
  tokenizer::Tokenizer tokenizer;
  int64_t context = 0;
  int32_t vocab_size = 0;
  int64_t slots = 0;
  std::unique_ptr<ChatFormat> chat;
  std::unique_ptr<Reloaded<ApiKeys>> keys;  // null: no key is needed
  int64_t created = 0;                      // seconds since 1970
  // Randomness, for seeds and for the ids of answers; seconds since 1970; metrics of the process,
  // which are part of the page.
  std::function<uint64_t()> random;
  std::function<int64_t()> now;
  std::function<void(MetricsPage*)> add_process_metrics = [](MetricsPage*) {};
};

class ApiServer : public HttpHandler {
 public:
  // All outlive it.
  ApiServer(const Service& service, HttpServer& http, ModelThread& model, ServingFigures& figures)
      : service_(service), http_(http), model_(model), figures_(figures) {
    named_[service.model];
    for (const std::string& name : service.adapters) named_[name];
  }

  void Request(Exchange exchange, HttpRequest request) override;
  void Gone(Exchange exchange) override;
  void Woken() override;
  std::string ErrorBody(const HttpError& error) override;

 private:
  // What a request names: the base, or one of the adapters beside it.
  struct Named {
    std::string name;
    std::optional<size_t> adapter;
  };
  // What one of the names has had to do.
  struct NamedFigures {
    int64_t requests = 0;
    int64_t new_tokens = 0;
  };
  // A request that the model works on.
  struct Active {
    std::string path;
    AnswerHead head;
    bool stream = false;
    bool stream_usage = false;
    std::vector<Choice> choices;
    std::vector<std::vector<int32_t>> prompts;
    std::vector<int32_t> last;  // the last id of each choice
    std::vector<bool> begun;    // whether a piece of the choice has been sent
    bool echo = false;
    Usage usage;
    size_t left = 0;  // choices that have not ended
  };

  void Get(Exchange exchange, const std::string& path);
  void Fail(Exchange exchange, const std::string& path, const ApiError& error);
  void Reply(Exchange exchange, const std::string& path, HttpAnswer answer);
  void Generate(Exchange exchange, const std::string& path, const GenerationRequest& request);
  // Empty: the base.
  std::optional<Named> Find(const std::string& name) const;
  ServedModel Served(const Named& named) const;
  void FailUnknown(Exchange exchange, const std::string& path, const std::string& name);
  absl::StatusOr<std::vector<std::vector<int32_t>>> PromptsOf(const GenerationRequest& request);
  // The fault of prompts that cannot be answered.
  std::optional<ApiError> Check(const GenerationRequest& request,
                                const std::vector<std::vector<int32_t>>& prompts) const;
  std::vector<TextTask> TasksOf(const GenerationRequest& request, const Named& named,
                                const std::vector<std::vector<int32_t>>& prompts);
  Active ActiveOf(const std::string& path, const GenerationRequest& request, const Named& named,
                  std::vector<std::vector<int32_t>> prompts);
  void Take(Active& active, const TextNews& news);
  void Break(Exchange exchange, const absl::Status& status);
  void Echo(Active& active, size_t text);
  ShownToken Shown(const inference::ScoredId& scored, int32_t before) const;
  std::string TokenText(int32_t before, int32_t id) const;
  void SendPiece(Exchange exchange, Active& active, size_t text);
  void Finish(Exchange exchange, const Active& active);
  std::string MetricsText() const;
  void Count(const std::string& path, int code) { ++requests_[{EndpointOf(path), code}]; }
  static std::string EndpointOf(const std::string& path);

  const Service& service_;
  HttpServer& http_;
  ModelThread& model_;
  ServingFigures& figures_;
  std::map<Exchange, Active> active_;
  std::map<std::pair<std::string, int>, int64_t> requests_;  // endpoint and code
  std::map<std::string, NamedFigures> named_;                // all names
};

}  // namespace tercio::serve
