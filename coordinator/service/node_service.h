// The service for agents (node_service.proto): their streams by the callback API (many streams, few
// threads), and the rendezvous of their trainers.
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <string>

#include "coordinator/service/coordinator.h"
#include "proto/tercio/v1/node_service.grpc.pb.h"

namespace tercio::coordinator {

class NodeServiceImpl
    : public v1::NodeService::WithCallbackMethod_Attach<v1::NodeService::Service> {
 public:
  NodeServiceImpl(Coordinator& coordinator, double heartbeat_interval)
      : coordinator_(coordinator), heartbeat_interval_(heartbeat_interval) {}

  // The synchronous form, which gRPC's generated class refuses, stays visible beside ours.
  using v1::NodeService::WithCallbackMethod_Attach<v1::NodeService::Service>::Attach;
  grpc::ServerBidiReactor<v1::AgentMessage, v1::CoordinatorMessage>* Attach(
      grpc::CallbackServerContext* context) override;
  grpc::Status RendezvousPut(grpc::ServerContext*, const v1::RendezvousPutRequest*,
                             v1::RendezvousPutResponse*) override;
  grpc::Status RendezvousGet(grpc::ServerContext*, const v1::RendezvousGetRequest*,
                             v1::RendezvousGetResponse*) override;

 private:
  class AgentStream;

  Coordinator& coordinator_;
  const double heartbeat_interval_;
  std::mutex mutex_;
  std::condition_variable changed_;
  // Per job the attempt it belongs to and its keys; an older attempt's are dropped.
  struct Rendezvous {
    int attempt = 0;
    std::map<std::string, std::string> values;
  };
  std::map<std::string, Rendezvous> rendezvous_;
};

}  // namespace tercio::coordinator
