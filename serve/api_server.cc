#include "serve/api_server.h"

#include <algorithm>
#include <optional>
#include <variant>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/log.h"
#include "common/metrics/metrics_page.h"
#include "common/metrics/metrics_server.h"
#include "common/status_macros.h"
#include "common/steady_time.h"
#include "worker/inference/generator.h"

namespace tercio::serve {
namespace {

constexpr char kCompletions[] = "/v1/completions";
constexpr char kChat[] = "/v1/chat/completions";
constexpr char kModels[] = "/v1/models";
constexpr char kMetrics[] = "/metrics";
constexpr char kHealth[] = "/health";
// As OpenAI has it for completions; a chat continues to its end.
constexpr int64_t kUsualTokens = 16;
// A code for the metrics only: the client has gone before its answer was complete.
constexpr int kClientGone = 499;

ApiError ServerError(const absl::Status& status) {
  return {.status = 500,
          .message = std::string(status.message()),
          .type = "server_error",
          .code = "internal_error"};
}

const char* NameOf(serve::Finish finish) {
  switch (finish) {
    case Finish::kStop:
      return "stop";
    case Finish::kLength:
      break;
  }
  return "length";
}

}  // namespace

std::string ApiServer::EndpointOf(const std::string& path) {
  for (const char* known : {kCompletions, kChat, kMetrics, kHealth}) {
    if (path == known) return path;
  }
  if (path == kModels || absl::StartsWith(path, absl::StrCat(kModels, "/"))) return kModels;
  return "other";
}

std::string ApiServer::ErrorBody(const HttpError& error) {
  Count("", error.code);
  return serve::ErrorBody({.status = error.code, .message = error.message});
}

void ApiServer::Reply(Exchange exchange, const std::string& path, HttpAnswer answer) {
  Count(path, answer.code);
  http_.Answer(exchange, answer);
}

void ApiServer::Fail(Exchange exchange, const std::string& path, const ApiError& error) {
  HttpAnswer answer = {.code = error.status, .body = serve::ErrorBody(error)};
  if (error.status == 401) answer.headers.emplace_back("WWW-Authenticate", "Bearer");
  if (error.status == 405) {
    answer.headers.emplace_back("Allow", path == kCompletions || path == kChat ? "POST" : "GET");
  }
  if (error.status == 429) answer.headers.emplace_back("Retry-After", "1");
  Reply(exchange, path, std::move(answer));
}

void ApiServer::Request(Exchange exchange, HttpRequest request) {
  const std::string& path = request.path;
  // The probes of load balancers have no key, and learn nothing.
  if (service_.keys != nullptr && path != kHealth &&
      !service_.keys->Current(SteadyNow()).Allows(request.headers["authorization"])) {
    return Fail(exchange, path,
                {.status = 401,
                 .message = "a key is needed: send Authorization: Bearer KEY",
                 .type = "authentication_error",
                 .code = "invalid_api_key"});
  }
  const std::string endpoint = EndpointOf(path);
  if (endpoint == "other") {
    return Fail(exchange, path,
                {.status = 404,
                 .message = absl::StrCat("there is no ", request.method, " ", path,
                                         "; docs/serving.md lists what is answered"),
                 .code = "not_found"});
  }
  const bool posts = endpoint == kCompletions || endpoint == kChat;
  if (request.method != (posts ? "POST" : "GET")) {
    return Fail(exchange, path,
                {.status = 405,
                 .message = absl::StrCat(path, " is for ", posts ? "POST" : "GET", ", not ",
                                         request.method)});
  }
  if (!posts) return Get(exchange, path);
  const std::variant<GenerationRequest, ApiError> parsed =
      path == kChat ? ParseChat(request.body) : ParseCompletion(request.body);
  if (const auto* error = std::get_if<ApiError>(&parsed)) return Fail(exchange, path, *error);
  Generate(exchange, path, std::get<GenerationRequest>(parsed));
}

void ApiServer::Get(Exchange exchange, const std::string& path) {
  if (path == kHealth) return Reply(exchange, path, {.body = R"({"status":"ok"})"});
  if (path == kMetrics) {
    return Reply(exchange, path, {.type = kMetricsType, .body = MetricsText()});
  }
  if (path == kModels) {
    std::vector<ServedModel> models = {Served({service_.model, std::nullopt})};
    for (size_t i = 0; i < service_.adapters.size(); ++i) {
      models.push_back(Served({service_.adapters[i], i}));
    }
    return Reply(exchange, path, {.body = ModelsBody(models, service_.created, service_.context)});
  }
  const std::string name(absl::StripPrefix(path, absl::StrCat(kModels, "/")));
  const std::optional<Named> named = Find(name);
  if (name.empty() || !named.has_value()) return FailUnknown(exchange, path, name);
  Reply(exchange, path, {.body = ModelBody(Served(*named), service_.created, service_.context)});
}

std::optional<ApiServer::Named> ApiServer::Find(const std::string& name) const {
  if (name.empty() || name == service_.model) return Named{service_.model, std::nullopt};
  const auto found = std::find(service_.adapters.begin(), service_.adapters.end(), name);
  if (found == service_.adapters.end()) return std::nullopt;
  return Named{name, static_cast<size_t>(found - service_.adapters.begin())};
}

ServedModel ApiServer::Served(const Named& named) const {
  return {named.name, named.adapter.has_value() ? service_.model : ""};
}

void ApiServer::FailUnknown(Exchange exchange, const std::string& path, const std::string& name) {
  std::vector<std::string> names = {service_.model};
  names.insert(names.end(), service_.adapters.begin(), service_.adapters.end());
  Fail(exchange, path,
       {.status = 404,
        .message =
            absl::StrCat("there is no model ", name, " here, only ", absl::StrJoin(names, ", ")),
        .parameter = "model",
        .code = "model_not_found"});
}

absl::StatusOr<std::vector<std::vector<int32_t>>> ApiServer::PromptsOf(
    const GenerationRequest& request) {
  std::vector<std::vector<int32_t>> prompts;
  if (request.chat) {
    TERCIO_ASSIGN_OR_RETURN(prompts.emplace_back(), service_.chat->Prompt(request.messages));
    return prompts;
  }
  for (const PromptInput& input : request.prompts) {
    prompts.push_back(input.ids);
    if (!input.ids.empty()) continue;
    TERCIO_ASSIGN_OR_RETURN(prompts.back(), service_.tokenizer.Encode(input.text));
  }
  return prompts;
}

std::optional<ApiError> ApiServer::Check(const GenerationRequest& request,
                                         const std::vector<std::vector<int32_t>>& prompts) const {
  const char* parameter = request.chat ? "messages" : "prompt";
  for (const std::vector<int32_t>& prompt : prompts) {
    const absl::Status status = inference::CheckPrompts({prompt}, service_.vocab_size);
    if (!status.ok()) {
      return ApiError{.message = std::string(status.message()), .parameter = parameter};
    }
    // The last new token is never read.
    const auto read = static_cast<int64_t>(prompt.size());
    const int64_t wanted = request.max_tokens.value_or(request.chat ? 1 : kUsualTokens);
    if (read > service_.context || wanted - 1 > service_.context - read) {
      return ApiError{
          .message = absl::StrCat("the context of this model is ", service_.context,
                                  " tokens, but the prompt has ", read, " and ", wanted,
                                  " more are asked for; shorten the prompt or max_tokens"),
          .parameter = parameter,
          .code = "context_length_exceeded"};
    }
  }
  return std::nullopt;
}

std::vector<TextTask> ApiServer::TasksOf(const GenerationRequest& request, const Named& named,
                                         const std::vector<std::vector<int32_t>>& prompts) {
  const uint64_t seed = request.seed.has_value() ? *request.seed : service_.random();
  std::vector<TextTask> tasks;
  for (const std::vector<int32_t>& prompt : prompts) {
    TextTask task = {.prompt = prompt};
    // What is left of the context, and the id after it.
    const int64_t left = service_.context + 1 - static_cast<int64_t>(prompt.size());
    task.max_tokens =
        request.max_tokens.value_or(request.chat ? left : std::min(left, kUsualTokens));
    task.options = {.sampling = {.temperature = request.temperature,
                                 .top_k = request.top_k,
                                 .top_p = request.top_p,
                                 .seed = seed},
                    .likeliest = request.log_probabilities,
                    .score_prompt = request.echo && request.log_probabilities.has_value(),
                    .adapter = named.adapter};
    task.stop = request.stop;
    if (request.chat) {
      for (std::string& word : service_.chat->stop_words()) task.stop.push_back(std::move(word));
    }
    task.ignore_end = request.ignore_eos;
    tasks.push_back(std::move(task));
  }
  return tasks;
}

ApiServer::Active ApiServer::ActiveOf(const std::string& path, const GenerationRequest& request,
                                      const Named& named,
                                      std::vector<std::vector<int32_t>> prompts) {
  Active active;
  active.path = path;
  active.head = {
      .chat = request.chat,
      .id = absl::StrFormat("%s-%016x", request.chat ? "chatcmpl" : "cmpl", service_.random()),
      .created = service_.now(),
      .model = named.name,
      .log_probabilities = request.log_probabilities.has_value()};
  active.stream = request.stream;
  active.stream_usage = request.stream_usage;
  active.echo = request.echo;
  active.left = prompts.size();
  active.choices.resize(prompts.size());
  active.begun.resize(prompts.size());
  for (size_t i = 0; i < prompts.size(); ++i) {
    active.choices[i].index = i;
    active.last.push_back(prompts[i].back());
    active.usage.prompt_tokens += static_cast<int64_t>(prompts[i].size());
  }
  active.prompts = std::move(prompts);
  return active;
}

void ApiServer::Generate(Exchange exchange, const std::string& path,
                         const GenerationRequest& request) {
  const std::optional<Named> named = Find(request.model);
  if (!named.has_value()) return FailUnknown(exchange, path, request.model);
  absl::StatusOr<std::vector<std::vector<int32_t>>> prompts = PromptsOf(request);
  if (!prompts.ok()) {
    return Fail(exchange, path,
                {.message = std::string(prompts.status().message()),
                 .parameter = request.chat ? "messages" : "prompt"});
  }
  if (const auto error = Check(request, *prompts)) return Fail(exchange, path, *error);
  const absl::Status submitted = model_.Submit(exchange, TasksOf(request, *named, *prompts));
  if (!submitted.ok()) {
    return Fail(exchange, path,
                {.status = 429,
                 .message = std::string(submitted.message()),
                 .type = "rate_limit_error",
                 .code = "queue_full"});
  }
  Active& active =
      active_.emplace(exchange, ActiveOf(path, request, *named, *std::move(prompts))).first->second;
  ++named_[named->name].requests;
  if (active.echo) {
    for (size_t i = 0; i < active.choices.size(); ++i) Echo(active, i);
  }
  // A client that has gone takes the request away with that.
  if (active.stream) http_.Begin(exchange, "text/event-stream; charset=utf-8");
}

// The prompt is the begin of the text, and of the tokens, the first of which follows nothing.
void ApiServer::Echo(Active& active, size_t text) {
  Choice& choice = active.choices[text];
  const std::vector<int32_t>& prompt = active.prompts[text];
  choice.text = service_.tokenizer.Decode(prompt).value_or("");
  if (active.head.log_probabilities) {
    choice.tokens.push_back({.text = TokenText(-1, prompt.front())});
  }
}

void ApiServer::Gone(Exchange exchange) {
  const auto found = active_.find(exchange);
  if (found == active_.end()) return;
  Count(found->second.path, kClientGone);
  model_.Cancel(exchange);
  active_.erase(found);
}

// Some tokenizers decide about the space before a token by the token before it.
std::string ApiServer::TokenText(int32_t before, int32_t id) const {
  std::string alone = service_.tokenizer.Decode({id}).value_or("");
  if (before < 0) return alone;
  const std::string first = service_.tokenizer.Decode({before}).value_or("");
  const std::string both = service_.tokenizer.Decode({before, id}).value_or("");
  return absl::StartsWith(both, first) ? both.substr(first.size()) : alone;
}

ShownToken ApiServer::Shown(const inference::ScoredId& scored, int32_t before) const {
  ShownToken token = {.text = TokenText(before, scored.id),
                      .log_probability = scored.log_probability};
  for (const inference::LogProbability& one : scored.likeliest) {
    token.likeliest.emplace_back(TokenText(before, one.id), one.value);
  }
  return token;
}

void ApiServer::Take(Active& active, const TextNews& news) {
  Choice& choice = active.choices[news.text];
  const std::vector<int32_t>& prompt = active.prompts[news.text];
  for (const inference::ScoredId& scored : news.prompt) {
    // The tokens of the prompt come in their order; the first is there.
    choice.tokens.push_back(Shown(scored, prompt[choice.tokens.size() - 1]));
  }
  choice.text += news.piece;
  if (news.id.has_value()) {
    ++active.usage.completion_tokens;
    ++named_[active.head.model].new_tokens;
    if (active.head.log_probabilities) {
      choice.tokens.push_back(Shown(*news.id, active.last[news.text]));
    }
    active.last[news.text] = news.id->id;
  }
  if (news.finish.has_value()) {
    choice.finish_reason = NameOf(*news.finish);
    --active.left;
  }
}

void ApiServer::SendPiece(Exchange exchange, Active& active, size_t text) {
  Choice& choice = active.choices[text];
  // Tokens without text yet, or half a character, wait for what follows.
  if (choice.text.empty() && choice.tokens.empty() && choice.finish_reason.empty()) return;
  const std::string event = ChunkEvent(active.head, choice, !active.begun[text]);
  active.begun[text] = true;
  for (const ShownToken& token : choice.tokens) choice.offset += CharactersOf(token.text);
  choice.text.clear();
  choice.tokens.clear();
  http_.Send(exchange, event);
}

void ApiServer::Finish(Exchange exchange, const Active& active) {
  Count(active.path, 200);
  if (!active.stream) {
    http_.Answer(exchange, {.body = AnswerBody(active.head, active.choices, active.usage)});
    return;
  }
  if (active.stream_usage) http_.Send(exchange, UsageEvent(active.head, active.usage));
  http_.Send(exchange, kLastEvent);
  http_.End(exchange);
}

void ApiServer::Break(Exchange exchange, const absl::Status& status) {
  LogError(absl::StrCat("a request failed: ", std::string(status.message())));
  // Out of the table first: what is sent may report that the client has gone.
  const Active active = std::move(active_.extract(exchange).mapped());
  model_.Cancel(exchange);
  if (!active.stream) return Fail(exchange, active.path, ServerError(status));
  Count(active.path, 500);
  http_.Send(exchange, ErrorEvent(ServerError(status)));
  http_.End(exchange);
}

void ApiServer::Woken() {
  for (const TextNews& news : model_.TakeNews()) {
    const auto found = active_.find(news.request);
    if (found == active_.end()) continue;
    if (!news.status.ok()) {
      Break(news.request, news.status);
      continue;
    }
    Take(found->second, news);
    if (found->second.stream) SendPiece(news.request, found->second, news.text);
    // The client may have gone with that.
    const auto still = active_.find(news.request);
    if (still == active_.end() || still->second.left > 0) continue;
    const Active active = std::move(active_.extract(still).mapped());
    Finish(news.request, active);
  }
}

std::string ApiServer::MetricsText() const {
  MetricsPage page(MetricExporter::kServer);
  for (const char* endpoint : {kCompletions, kChat, kModels}) {
    if (!requests_.contains({endpoint, 200})) {
      page.Set("tercio_serve_requests_total", {"200", endpoint}, 0);
    }
  }
  for (const auto& [key, count] : requests_) {
    page.Set("tercio_serve_requests_total", {absl::StrCat(key.second), key.first},
             static_cast<double>(count));
  }
  for (const auto& [name, figures] : named_) {
    page.Set("tercio_serve_model_requests_total", {name}, static_cast<double>(figures.requests));
    page.Set("tercio_serve_model_new_tokens_total", {name},
             static_cast<double>(figures.new_tokens));
  }
  const ModelThread::Load load = model_.load();
  page.Set("tercio_serve_prompt_tokens_total", static_cast<double>(figures_.prompt_tokens));
  page.Set("tercio_serve_new_tokens_total", static_cast<double>(figures_.new_tokens));
  page.Set("tercio_serve_queued_texts", static_cast<double>(load.waiting));
  page.Set("tercio_serve_growing_texts", static_cast<double>(load.growing));
  page.Set("tercio_serve_slots", static_cast<double>(service_.slots));
  page.Set("tercio_serve_cache_pages", static_cast<double>(figures_.cache_pages));
  page.Set("tercio_serve_used_cache_pages", static_cast<double>(figures_.used_cache_pages));
  page.Set("tercio_serve_reused_prompt_tokens_total",
           static_cast<double>(figures_.reused_prompt_tokens));
  page.Set("tercio_serve_evicted_texts_total", static_cast<double>(figures_.evicted_texts));
  page.Set("tercio_serve_connections", static_cast<double>(http_.connections()));
  page.Set("tercio_serve_first_token_seconds", figures_.first_token.figures());
  page.Set("tercio_serve_next_token_seconds", figures_.next_token.figures());
  service_.add_process_metrics(&page);
  return page.Text();
}

}  // namespace tercio::serve
