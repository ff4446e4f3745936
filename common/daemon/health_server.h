// Only gRPC's health service (grpc.health.v1.Health), in plain text, on a port of its own: for the
// probes of Kubernetes, which support neither TLS nor certificates. It reports whether the services
// "liveness", "readiness" and "" (the same as "readiness") serve. Nothing else of Tercio is
// accessible there (gRPC's library adds reflection, which lists these two services).
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace grpc {
class Server;
}  // namespace grpc

namespace tercio {

// What a daemon says of itself: that its loop makes progress, and that it is ready to serve.
struct DaemonHealth {
  bool alive = false;
  bool ready = false;
};

class HealthServer {
 public:
  // Listens on HOST:PORT; port 0 picks one; null if `address` is empty. Reports that nothing serves
  // until Set is called. FAILED_PRECONDITION if it cannot listen there.
  static absl::StatusOr<std::unique_ptr<HealthServer>> Listen(const std::string& address);
  ~HealthServer();
  HealthServer(const HealthServer&) = delete;
  HealthServer& operator=(const HealthServer&) = delete;

  void Set(const DaemonHealth& health);
  const std::string& address() const { return address_; }

 private:
  HealthServer() = default;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

// The same for the health service of a server that has other services, too (and was built after
// grpc::EnableDefaultHealthCheckService).
void SetHealth(grpc::Server& server, const DaemonHealth& health);

}  // namespace tercio
