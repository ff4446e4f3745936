#include "common/daemon/health_server.h"

#include <chrono>

#include "absl/strings/str_cat.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/resource_quota.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"

namespace tercio {
namespace {

// Requests and responses have a few bytes; strangers may send them.
constexpr int kMostMessageBytes = 4096;
constexpr int kMostStreams = 16;  // streams of a connection
constexpr size_t kMostMemory = size_t{16} << 20;

}  // namespace

absl::StatusOr<std::unique_ptr<HealthServer>> HealthServer::Listen(const std::string& address) {
  if (address.empty()) return std::unique_ptr<HealthServer>();
  std::unique_ptr<HealthServer> made(new HealthServer);
  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(kMostMessageBytes);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMostStreams);
  // Two daemons on one port would share the probes.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  grpc::ResourceQuota quota("health");
  quota.Resize(kMostMemory);
  builder.SetResourceQuota(quota);
  int port = 0;
  builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &port);
  made->server_ = builder.BuildAndStart();
  if (made->server_ == nullptr || port == 0) {
    return absl::FailedPreconditionError(absl::StrCat("cannot listen on --health-listen ", address,
                                                      "; is it HOST:PORT, and the port free?"));
  }
  made->Set({});  // until Set is called
  made->address_ = absl::StrCat(address.substr(0, address.rfind(':')), ":", port);
  return made;
}

HealthServer::~HealthServer() {
  // Probes need no time to finish.
  if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
}

void HealthServer::Set(const DaemonHealth& health) { SetHealth(*server_, health); }

void SetHealth(grpc::Server& server, const DaemonHealth& health) {
  grpc::HealthCheckServiceInterface* service = server.GetHealthCheckService();
  // A server without the service has nobody who asks.
  if (service == nullptr) return;
  service->SetServingStatus("liveness", health.alive);
  service->SetServingStatus("readiness", health.ready);
  // The empty name is what probes ask that know no other.
  service->SetServingStatus("", health.ready);
}

}  // namespace tercio
