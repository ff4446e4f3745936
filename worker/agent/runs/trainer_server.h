// The agent's side of trainer.proto, on a Unix-domain socket.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "grpcpp/server.h"
#include "proto/tercio/v1/node_service.grpc.pb.h"
#include "proto/tercio/v1/trainer.grpc.pb.h"
#include "worker/agent/runs/run_manager.h"

namespace tercio::agent {

class TrainerServer {
 public:
  // `runs`, `coordinator` (which rendezvous calls are passed on to) and `snapshots` must outlive
  // the server.
  static absl::StatusOr<std::unique_ptr<TrainerServer>> Listen(const std::string& socket,
                                                               RunManager& runs,
                                                               v1::NodeService::Stub& coordinator,
                                                               grpc::Service& snapshots);
  ~TrainerServer();

 private:
  class Service;
  TrainerServer() = default;

  std::unique_ptr<Service> service_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace tercio::agent
