// The service for agents (node_service.proto): their streams by the callback API (many streams, few
// threads), and the rendezvous of their trainers.
#pragma once

#include <string>
#include <thread>

#include "common/mutex.h"
#include "coordinator/access/gate.h"
#include "coordinator/service/coordinator.h"
#include "coordinator/service/rendezvous.h"
#include "proto/tercio/v1/node_service.grpc.pb.h"

namespace tercio::coordinator {

// The message for an agent that was sent `told` (null: nothing yet), after which it knows `now`.
v1::RevokedCertificates NewlyRevoked(const Gate::Revoked* told, const Gate::Revoked& now);

class NodeServiceImpl : public v1::NodeService::CallbackService {
 public:
  // All must outlive it. An agent's stream is about its own node only.
  NodeServiceImpl(Gate& gate, Coordinator& coordinator, double heartbeat_interval);
  ~NodeServiceImpl() override;

  // The synchronous forms, which gRPC's generated classes refuse, stay visible beside ours.
  using v1::NodeService::CallbackService::Attach;
  using v1::NodeService::CallbackService::RendezvousGet;
  using v1::NodeService::CallbackService::RendezvousPut;
  grpc::ServerBidiReactor<v1::AgentMessage, v1::CoordinatorMessage>* Attach(
      grpc::CallbackServerContext* context) override;
  grpc::ServerUnaryReactor* RendezvousPut(grpc::CallbackServerContext* context,
                                          const v1::RendezvousPutRequest* request,
                                          v1::RendezvousPutResponse* response) override;
  grpc::ServerUnaryReactor* RendezvousGet(grpc::CallbackServerContext* context,
                                          const v1::RendezvousGetRequest* request,
                                          v1::RendezvousGetResponse* response) override;

 private:
  class AgentStream;
  class PendingGet;

  Gate& gate_;
  Coordinator& coordinator_;
  const double heartbeat_interval_;
  Rendezvous rendezvous_;
  Mutex mutex_;
  ConditionVariable stopped_;
  bool stopping_ TERCIO_GUARDED_BY(mutex_) = false;
  std::thread sweeper_;  // ends waits that have lasted too long
};

}  // namespace tercio::coordinator
