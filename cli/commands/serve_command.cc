// A server that answers OpenAI's API with a trained model on this machine.
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "checkpoint/huggingface/peft_adapter.h"
#include "cli/client.h"
#include "cli/commands/checkpoint_path.h"
#include "cli/commands/commands.h"
#include "cli/commands/loaded_model.h"
#include "cli/commands/named_adapters.h"
#include "cli/format.h"
#include "common/daemon/daemon.h"
#include "common/exit_codes.h"
#include "common/machine.h"
#include "common/metrics/process_metrics.h"
#include "common/security/channel.h"
#include "common/status_macros.h"
#include "common/version.h"
#include "data/chat/recognition.h"
#include "data/chat/template.h"
#include "serve/api_server.h"
#include "worker/inference/language_model.h"

namespace tercio::cli {
namespace {

// What a stranger could reach is encrypted, and asks who is there.
absl::Status CheckAddress(const ServeOptions& options) {
  if (options.insecure || IsLoopback(options.listen)) return absl::OkStatus();
  const bool encrypted = !options.server_tls.certificate.empty();
  const bool asks = !options.api_key_file.empty() || !options.server_tls.authority.empty();
  if (encrypted && asks) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--listen ", options.listen, " is not loopback: give --tls-cert and --tls-key, ",
                   "and --api-key-file or --tls-ca; or --insecure, where everyone who reaches the "
                   "address may use the model and read what others send"));
}

std::string NameOfModel(const ServeOptions& options) {
  if (!options.name.empty()) return options.name;
  const std::string last = LastPartOf(options.checkpoint);
  return last.empty() ? "model" : last;
}

absl::Status OpenAdapters(const std::vector<NamedAdapter>& adapters,
                          inference::OpenedModel* opened) {
  for (const NamedAdapter& adapter : adapters) {
    absl::StatusOr<std::string> directory = FindCheckpoint(adapter.directory, 0);
    absl::Status status = directory.status();
    if (status.ok()) status = inference::AddAdapter(*directory, opened);
    if (status.ok()) continue;
    return absl::Status(status.code(), absl::StrCat("--adapter ", adapter.name, ": ",
                                                    std::string(status.message())));
  }
  return absl::OkStatus();
}

// The name of a template: that of the option, what the tokenizer comes with, or, without any, what
// its tokens were made for.
absl::StatusOr<std::string> TemplateOf(const ServeOptions& options, const std::string& directory,
                                       const tokenizer::Tokenizer& tokenizer) {
  if (options.chat_template != "auto") return options.chat_template;
  const std::string path =
      options.tokenizer.empty() ? checkpoint::TokenizerDirectoryOf(directory) : options.tokenizer;
  for (const std::string& at : {path, path + "/hf"}) {
    const auto own = data::chat::TemplateOfTokenizer(at);
    if (own.ok()) return std::string((*own)->name);
    if (absl::IsNotFound(own.status())) continue;
    return absl::InvalidArgumentError(absl::StrCat(std::string(own.status().message()),
                                                   "; name one with --template, or take plain"));
  }
  const auto begin = tokenizer.Encode("<|im_start|>");
  return std::string(begin.ok() && begin->size() == 1 ? "chatml" : serve::kPlainChat);
}

// Loads the model with its adapters, after a check that they fit.
absl::StatusOr<std::unique_ptr<inference::LanguageModel>> LoadToServe(
    const ServeOptions& options, const std::vector<NamedAdapter>& adapters) {
  TERCIO_ASSIGN_OR_RETURN(const std::string directory, FindCheckpoint(options.checkpoint, 0));
  TERCIO_ASSIGN_OR_RETURN(std::optional<tokenizer::Tokenizer> tokenizer, NamedTokenizer(options));
  TERCIO_ASSIGN_OR_RETURN(inference::OpenedModel opened,
                          inference::OpenModel(directory, std::move(tokenizer)));
  if (!opened.tokenizer.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.checkpoint, " has no tokenizer that is supported by this version; ",
                     "name one with --tokenizer PATH"));
  }
  TERCIO_RETURN_IF_ERROR(OpenAdapters(adapters, &opened));
  const inference::PassSize pass = {
      .sequences = options.slots, .context = options.context, .cache_tokens = options.cache_tokens};
  TERCIO_ASSIGN_OR_RETURN(const inference::PlannedBytes bytes,
                          inference::PlanBytes(opened, MachineCores(), pass));
  const int64_t available = AvailableMemoryBytes();
  std::fprintf(stderr,
               "memory: %s of weights, %s for keys and values of %lld tokens in up to %lld texts, "
               "%s beside them\n",
               SizeText(bytes.weights).c_str(), SizeText(bytes.cache).c_str(),
               static_cast<long long>(bytes.cache_tokens),  // NOLINT: the type of the format
               static_cast<long long>(options.slots),       // NOLINT
               SizeText(bytes.total() - bytes.weights - bytes.cache - bytes.adapters).c_str());
  if (!adapters.empty()) {
    std::fprintf(stderr, "memory: %s of adapters (%zu)\n", SizeText(bytes.adapters).c_str(),
                 adapters.size());
  }
  if (available > 0 && bytes.total() > available) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the model and its texts need ", SizeText(bytes.total()), ", but only ",
                     SizeText(available),
                     " of memory are free; use fewer --cache-tokens or --slots, or a shorter "
                     "--context",
                     adapters.empty() ? "" : ", or fewer adapters"));
  }
  return inference::LanguageModel::Load(opened, MachineCores(), pass);
}

absl::StatusOr<serve::Service> ServiceOf(const ServeOptions& options,
                                         const std::vector<NamedAdapter>& adapters,
                                         inference::LanguageModel& model) {
  const tokenizer::Tokenizer& tokenizer = *model.tokenizer();
  serve::Service service = {.model = NameOfModel(options),
                            .tokenizer = tokenizer,
                            .context = model.context(),
                            .vocab_size = model.vocab_size(),
                            .slots = options.slots,
                            .created = absl::ToUnixSeconds(absl::Now())};
  for (const NamedAdapter& adapter : adapters) service.adapters.push_back(adapter.name);
  TERCIO_ASSIGN_OR_RETURN(const std::string directory, FindCheckpoint(options.checkpoint, 0));
  TERCIO_ASSIGN_OR_RETURN(const std::string name, TemplateOf(options, directory, tokenizer));
  TERCIO_ASSIGN_OR_RETURN(service.chat, serve::ChatFormatNamed(name, tokenizer));
  if (!options.api_key_file.empty()) {
    const std::string path = options.api_key_file;
    TERCIO_ASSIGN_OR_RETURN(service.keys, serve::Reloaded<serve::ApiKeys>::Make(
                                              "--api-key-file " + path, {path},
                                              [path] { return serve::ApiKeys::Load(path); }));
  }
  service.random = [] {
    static std::random_device device;
    return uint64_t{device()} << 32 | device();
  };
  service.now = [] { return absl::ToUnixSeconds(absl::Now()); };
  service.add_process_metrics = [](MetricsPage* page) {
    AddProcessMetrics(kVersion, kCommit, page);
  };
  return service;
}

// During its lifetime the first SIGINT or SIGTERM lets running requests end, the second ends them.
// Before anything is served a signal ends the process: loading takes long, and leaves nothing
// behind.
class StopAtSignals {
 public:
  explicit StopAtSignals(absl::Duration grace) : grace_(grace), thread_([this] { Watch(); }) {}
  ~StopAtSignals() {
    done_ = true;
    thread_.join();
  }
  void BeginServing(serve::HttpServer* server) { server_ = server; }

 private:
  void Watch() {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    const timespec pause{0, 100'000'000};
    absl::Duration left = grace_;
    while (!done_) {
      const int signal = sigtimedwait(&set, nullptr, &pause);
      if (signal < 0) continue;
      serve::HttpServer* const server = server_;
      if (server == nullptr) std::_Exit(signal == SIGINT ? kExitInterrupted : kExitTerminated);
      server->Stop(std::exchange(left, absl::ZeroDuration()));
    }
  }

  const absl::Duration grace_;
  std::atomic<bool> done_{false};
  std::atomic<serve::HttpServer*> server_{nullptr};
  std::thread thread_;
};

absl::StatusOr<int> ServeModel(const ServeOptions& options) {
  TERCIO_RETURN_IF_ERROR(CheckAddress(options));
  TERCIO_ASSIGN_OR_RETURN(const std::vector<NamedAdapter> adapters,
                          NamedAdapters(options.adapters, NameOfModel(options)));
  // First: the threads of the model inherit which signals are blocked.
  BlockStopSignals();
  // OpenSSL writes to connections whose clients have gone.
  std::signal(SIGPIPE, SIG_IGN);
  RaiseFileLimit();
  auto signals = std::make_unique<StopAtSignals>(absl::Seconds(options.grace));
  std::unique_ptr<serve::ReloadedTls> tls;
  if (const TlsFiles& files = options.server_tls; files.given()) {
    TERCIO_ASSIGN_OR_RETURN(
        tls, serve::ReloadedTls::Make("certificate " + files.certificate,
                                      {files.certificate, files.key, files.authority},
                                      [files] { return serve::TlsContext::Load(files); }));
  }
  // The address is checked before the model is loaded, which takes long.
  const serve::HttpServer::Limits limits = {
      .requests = {.body_bytes = static_cast<size_t>(options.max_body)},
      .connections = static_cast<size_t>(options.max_connections)};
  TERCIO_ASSIGN_OR_RETURN(const auto http,
                          serve::HttpServer::Listen(options.listen, std::move(tls), limits));
  TERCIO_ASSIGN_OR_RETURN(const auto model, LoadToServe(options, adapters));
  TERCIO_ASSIGN_OR_RETURN(const serve::Service service, ServiceOf(options, adapters, *model));
  serve::ServingFigures figures;
  const auto decode = [&service](absl::Span<const int32_t> ids) {
    return service.tokenizer.Decode(ids);
  };
  serve::ModelThread thread(model->texts(),
                            serve::RequestQueue({.slots = static_cast<size_t>(options.slots),
                                                 .waiting = static_cast<size_t>(options.max_queue)},
                                                decode, service.tokenizer.end_of_text(), &figures),
                            inference::kPromptRows, [&http] { http->Wake(); });
  serve::ApiServer api(service, *http, thread, figures);
  signals->BeginServing(http.get());
  std::printf("ready serve=%s model=%s slots=%lld context=%lld\n", http->address().c_str(),
              service.model.c_str(),
              static_cast<long long>(options.slots),      // NOLINT: the type of the format
              static_cast<long long>(model->context()));  // NOLINT
  std::fflush(stdout);
  http->Run(api);
  // The server is gone before the thread that stops it would be.
  signals.reset();
  return kExitOk;
}

}  // namespace

int Serve(const ServeOptions& options) {
  const absl::StatusOr<int> code = ServeModel(options);
  return code.ok() ? *code : Fail(code.status());
}

}  // namespace tercio::cli
