#include "worker/agent/trainer_server.h"

#include <chrono>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/channel.h"
#include "common/grpc_status.h"
#include "grpcpp/server_builder.h"
#include "worker/agent/command_stream.h"

namespace tercio {

class TrainerServer::Service : public v1::TrainerService::Service {
 public:
  Service(RunManager& runs, v1::NodeService::Stub& coordinator)
      : runs_(runs), coordinator_(coordinator) {}

  grpc::Status Attach(
      grpc::ServerContext*,
      grpc::ServerReaderWriter<v1::TrainerCommand, v1::TrainerMessage>* stream) override {
    v1::TrainerMessage message;
    if (!stream->Read(&message) || !message.has_hello()) {
      return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "the first message must be hello");
    }
    const v1::TrainerHello hello = message.hello();
    const auto commands = std::make_shared<CommandStream>(
        [stream](const v1::TrainerCommand& command) { stream->Write(command); });
    const auto attached = runs_.Attach(
        hello, [commands](const v1::TrainerCommand& command) { commands->Send(command); });
    if (!attached.ok()) return ToGrpc(attached.status());
    std::vector<v1::TrainerCommand> first(2);
    *first[0].mutable_assignment() = attached->assignment;
    first[1].set_received(attached->received);
    first.insert(first.end(), attached->waiting.begin(), attached->waiting.end());
    commands->Open(first);
    while (stream->Read(&message)) {
      runs_.Receive(hello, message);
      if (message.sequence() == 0) continue;
      v1::TrainerCommand received;
      received.set_received(message.sequence());
      commands->Send(received);
    }
    runs_.Detach(hello, attached->id);
    return grpc::Status::OK;
  }

  grpc::Status Put(grpc::ServerContext* context, const v1::RendezvousPutRequest* request,
                   v1::RendezvousPutResponse* response) override {
    const auto outgoing = grpc::ClientContext::FromServerContext(*context);
    return coordinator_.RendezvousPut(outgoing.get(), *request, response);
  }

  grpc::Status Get(grpc::ServerContext* context, const v1::RendezvousGetRequest* request,
                   v1::RendezvousGetResponse* response) override {
    const auto outgoing = grpc::ClientContext::FromServerContext(*context);
    return coordinator_.RendezvousGet(outgoing.get(), *request, response);
  }

 private:
  RunManager& runs_;
  v1::NodeService::Stub& coordinator_;
};

absl::StatusOr<std::unique_ptr<TrainerServer>> TrainerServer::Listen(
    const std::string& socket, RunManager& runs, v1::NodeService::Stub& coordinator) {
  std::unique_ptr<TrainerServer> server(new TrainerServer);
  server->service_ = std::make_unique<Service>(runs, coordinator);
  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(kMostMessageBytes);
  builder.AddListeningPort("unix:" + socket, grpc::InsecureServerCredentials());
  builder.RegisterService(server->service_.get());
  server->server_ = builder.BuildAndStart();
  if (server->server_ == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat("cannot listen on the socket ", socket));
  }
  return server;
}

TrainerServer::~TrainerServer() {
  if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
}

}  // namespace tercio
