#include "worker/trainer/agent_link.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "common/channel.h"
#include "common/grpc_status.h"
#include "common/log.h"
#include "common/status_macros.h"

namespace tercio {

absl::StatusOr<std::unique_ptr<AgentLink>> AgentLink::Connect(const std::string& socket,
                                                              const v1::TrainerHello& hello) {
  std::unique_ptr<AgentLink> link(new AgentLink);
  TERCIO_ASSIGN_OR_RETURN(const auto channel, OpenChannel("unix:" + socket, {}));
  link->stub_ = v1::TrainerService::NewStub(channel);
  link->run_ = hello.run();
  link->token_ = hello.token();
  link->stream_ = link->stub_->Attach(&link->context_);
  v1::TrainerMessage message;
  *message.mutable_hello() = hello;
  v1::TrainerCommand command;
  if (!link->stream_->Write(message) || !link->stream_->Read(&command) ||
      !command.has_assignment()) {
    const grpc::Status status = link->stream_->Finish();
    return absl::UnavailableError(
        absl::StrCat("the agent gave no assignment: ", status.error_message()));
  }
  link->assignment_ = command.assignment();
  link->reader_ = std::thread([raw = link.get()] { raw->ReadCommands(); });
  return link;
}

AgentLink::~AgentLink() {
  closing_ = true;
  if (!reader_.joinable()) return;
  {
    std::lock_guard<std::mutex> lock(write_mutex_);
    stream_->WritesDone();
  }
  // The agent ends its side when it has read all of ours; only a stuck agent is cut off.
  for (int i = 0; i < 100 && !ended_; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  context_.TryCancel();
  reader_.join();
  stream_->Finish();
}

void AgentLink::ReadCommands() {
  v1::TrainerCommand command;
  while (stream_->Read(&command)) {
    if (!command.has_save_now()) continue;
    const int wanted = command.save_now().then_stop() ? 2 : 1;
    int before = request_;
    while (before < wanted && !request_.compare_exchange_weak(before, wanted)) {
    }
  }
  ended_ = true;
  const absl::Time lost = absl::Now();
  while (!closing_) {
    if (absl::Now() - lost > absl::Seconds(assignment_.agent_grace_seconds())) {
      LogError("the agent has gone; ending");
      _exit(1);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

AgentLink::Request AgentLink::TakeRequest() { return static_cast<Request>(request_.exchange(0)); }

void AgentLink::Send(const v1::TrainerMessage& message) {
  std::lock_guard<std::mutex> lock(write_mutex_);
  stream_->Write(message);  // false when the agent has gone: ReadCommands deals with that
}

void AgentLink::SendPhase(v1::TrainerPhase phase) {
  v1::TrainerMessage message;
  message.mutable_phase()->set_phase(phase);
  Send(message);
}

absl::Status AgentLink::Put(const std::string& key, const std::string& value) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
  v1::RendezvousPutRequest request;
  *request.mutable_run() = run_;
  request.set_token(token_);
  request.set_key(key);
  request.set_value(value);
  v1::RendezvousPutResponse response;
  return FromGrpc(stub_->Put(&context, request, &response));
}

absl::StatusOr<std::vector<std::string>> AgentLink::Get(const std::vector<std::string>& keys,
                                                        absl::Duration timeout) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(timeout));
  v1::RendezvousGetRequest request;
  *request.mutable_run() = run_;
  request.set_token(token_);
  for (const std::string& key : keys) request.add_keys(key);
  v1::RendezvousGetResponse response;
  TERCIO_RETURN_IF_ERROR(FromGrpc(stub_->Get(&context, request, &response)));
  if (response.values_size() != static_cast<int>(keys.size())) {
    return absl::InternalError("the rendezvous answered with another number of values");
  }
  return std::vector<std::string>(response.values().begin(), response.values().end());
}

}  // namespace tercio
