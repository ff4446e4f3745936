#include "worker/agent/runs/trainer_server.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/grpc_status.h"
#include "common/log.h"
#include "common/security/channel.h"
#include "common/steady_time.h"
#include "common/version.h"
#include "grpcpp/server_builder.h"
#include "worker/agent/link/command_stream.h"
#include "worker/agent/runs/shared_rendezvous.h"

namespace tercio::agent {
namespace {

// The first version did not send its version.
std::string VersionOf(const grpc::ServerContext& context) {
  const auto found = context.client_metadata().find(kVersionMetadata);
  if (found == context.client_metadata().end()) return "0.1.0";
  return std::string(found->second.data(), found->second.size());
}

}  // namespace

class TrainerServer::Service : public v1::TrainerService::Service {
 public:
  Service(RunManager& runs, v1::NodeService::Stub& coordinator)
      : runs_(runs), coordinator_(coordinator), rendezvous_([this](const auto& run) {
          const std::vector<v1::RunId> running = runs_.Running(EndedRuns::kLeaveOut);
          return std::any_of(running.begin(), running.end(), [&](const v1::RunId& id) {
            return id.job_id() == run.job && id.attempt() == run.attempt;
          });
        }) {}

  grpc::Status Attach(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<v1::TrainerCommand, v1::TrainerMessage>* stream) override {
    v1::TrainerMessage message;
    if (!stream->Read(&message) || !message.has_hello()) {
      return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "the first message must be hello");
    }
    // It is a copy, since the message is read into again.
    const v1::TrainerHello hello = message.hello();
    // The trainer is a program of its own, which an upgrade may have left behind.
    const absl::Status version = CheckVersions(absl::StrCat("the trainer of rank ", hello.rank()),
                                               VersionOf(*context), "this agent");
    if (!version.ok()) {
      LogError(std::string(version.message()));
      return ToGrpc(version);
    }
    // Until Open it keeps back what the runs send: the assignment has to come first.
    const auto commands = std::make_shared<CommandStream>(
        [stream](const v1::TrainerCommand& command) { stream->Write(command); });
    const auto attached = runs_.Attach(
        hello, [commands](const v1::TrainerCommand& command) { commands->Send(command); });
    if (!attached.ok()) return ToGrpc(attached.status());
    std::vector<v1::TrainerCommand> first(2);
    *first[0].mutable_assignment() = attached->assignment;
    // The trainer then sends again only what no agent has received.
    first[1].set_received(attached->received);
    first.insert(first.end(), attached->waiting.begin(), attached->waiting.end());
    commands->Open(first);
    while (stream->Read(&message)) {
      runs_.Receive(hello, message);
      // Such messages are sent once, and nobody waits for their receipt.
      if (message.sequence() == 0) continue;
      v1::TrainerCommand received;
      received.set_received(message.sequence());
      commands->Send(received);
    }
    // A later connection of the same rank may be attached by now, hence the id.
    runs_.Detach(hello, attached->id);
    return grpc::Status::OK;
  }

  grpc::Status Put(grpc::ServerContext* context, const v1::RendezvousPutRequest* request,
                   v1::RendezvousPutResponse* response) override {
    const auto outgoing = grpc::ClientContext::FromServerContext(*context);
    const grpc::Status status = coordinator_.RendezvousPut(outgoing.get(), *request, response);
    if (!status.ok()) return status;
    // The coordinator has accepted them, and with them the run's token, which is not checked here.
    for (const v1::RendezvousEntry& entry : request->entries()) {
      rendezvous_.Keep(RunOf(*request), entry.key(), entry.value());
    }
    return status;
  }

  grpc::Status Get(grpc::ServerContext* context, const v1::RendezvousGetRequest* request,
                   v1::RendezvousGetResponse* response) override {
    // gRPC's deadlines are of the wall clock, which may jump while this waits.
    const absl::Duration left = absl::FromChrono(context->deadline()) - absl::Now();
    const SharedRendezvous::Caller caller{SteadyNow() + left,
                                          [context] { return context->IsCancelled(); }};
    // The call takes over the caller's deadline, and ends when the caller gives up.
    const auto ask =
        [&](const SharedRendezvous::Keys& keys) -> absl::StatusOr<SharedRendezvous::Values> {
      v1::RendezvousGetRequest wanted;
      *wanted.mutable_run() = request->run();
      wanted.set_token(request->token());
      wanted.mutable_keys()->Assign(keys.begin(), keys.end());
      const auto outgoing = grpc::ClientContext::FromServerContext(*context);
      v1::RendezvousGetResponse answer;
      const grpc::Status status = coordinator_.RendezvousGet(outgoing.get(), wanted, &answer);
      if (!status.ok()) return FromGrpc(status);
      return SharedRendezvous::Values(answer.values().begin(), answer.values().end());
    };
    const absl::StatusOr<SharedRendezvous::Values> values = rendezvous_.Get(
        RunOf(*request), {request->keys().begin(), request->keys().end()}, caller, ask);
    if (!values.ok()) return ToGrpc(values.status());
    response->mutable_values()->Assign(values->begin(), values->end());
    return grpc::Status::OK;
  }

 private:
  template <typename Request>
  static SharedRendezvous::Run RunOf(const Request& request) {
    return {request.run().job_id(), request.run().attempt(), request.token()};
  }

  RunManager& runs_;
  v1::NodeService::Stub& coordinator_;
  SharedRendezvous rendezvous_;
};

absl::StatusOr<std::unique_ptr<TrainerServer>> TrainerServer::Listen(
    const std::string& socket, RunManager& runs, v1::NodeService::Stub& coordinator,
    grpc::Service& snapshots) {
  std::unique_ptr<TrainerServer> server(new TrainerServer);
  server->service_ = std::make_unique<Service>(runs, coordinator);
  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(kMostMessageBytes);
  // The directory's mode keeps other users away, and trainers show the token of their attempt.
  builder.AddListeningPort("unix:" + socket, grpc::InsecureServerCredentials());
  builder.RegisterService(server->service_.get());
  // Trainers also hand over their snapshots here, without the network.
  builder.RegisterService(&snapshots);
  server->server_ = builder.BuildAndStart();
  if (server->server_ == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat("cannot listen on the socket ", socket));
  }
  return server;
}

TrainerServer::~TrainerServer() {
  // Trainers connect again, to the next agent: no call is worth waiting for.
  if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
}

}  // namespace tercio::agent
